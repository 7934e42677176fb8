from laplex.stats._density import kde, kde_sample
from laplex.stats._regression import nadaraya_watson, local_linear
from laplex.stats._bandwidth import bandwidth
from laplex.stats._mmd import mmd
from laplex.stats._energy import energy_distance, crps
