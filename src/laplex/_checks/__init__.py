"""The argument checks, and the text of every error: function, argument, what is required, what was got, what to do.

    arguments.py   shapes, dtypes and devices of what the user passes, before anything is computed
    tau.py         the length scale: its type, its shape and its values, and whether anchors are precise enough for it
    algebra.py     what lazy matrices are scaled by and added to
    solves.py      what only solves, log determinants and factors need
    core.py        faults that the compiled core reports
    renamed.py     arguments that used to have another name
    messages.py    texts for faults that other modules find

Checks raise; functions of ``messages.py`` (and ``bad_tau``) return a text and leave raising to the caller.

The values of anchors, of tau and of a plan are checked where they are read anyway: in the backends and in the plan. On
CUDA, checking values would make the host wait for the device, so there a fault makes the result NaN instead.
"""

from laplex._checks.arguments import anchor_pair as anchor_pair
from laplex._checks.arguments import batch_shape as batch_shape
from laplex._checks.arguments import both_phases as both_phases
from laplex._checks.arguments import check_tensor as check_tensor
from laplex._checks.arguments import column_hint as column_hint
from laplex._checks.arguments import gram_weight as gram_weight
from laplex._checks.arguments import inner_size as inner_size
from laplex._checks.arguments import made_by as made_by
from laplex._checks.arguments import no_transform_in_a_graph as no_transform_in_a_graph
from laplex._checks.arguments import one_by_one as one_by_one
from laplex._checks.arguments import one_weight as one_weight
from laplex._checks.arguments import operand as operand
from laplex._checks.arguments import phase_shape as phase_shape
from laplex._checks.arguments import phases as phases
from laplex._checks.arguments import sum_weight as sum_weight
from laplex._checks.messages import differentiable_once as differentiable_once
from laplex._checks.messages import not_a_plan as not_a_plan
from laplex._checks.messages import not_an_index as not_an_index
from laplex._checks.messages import not_captured as not_captured
from laplex._checks.messages import not_copied as not_copied
from laplex._checks.messages import not_defined as not_defined
from laplex._checks.messages import not_defined_for_factors as not_defined_for_factors
from laplex._checks.messages import not_definite as not_definite
from laplex._checks.messages import not_exported as not_exported
from laplex._checks.messages import not_finite as not_finite
from laplex._checks.messages import not_symmetric as not_symmetric
from laplex._checks.messages import other_backend as other_backend
from laplex._checks.messages import stale_plan as stale_plan
from laplex._checks.messages import without_core as without_core
from laplex._checks.solves import diagonal as diagonal
from laplex._checks.solves import finite_phase as finite_phase
from laplex._checks.solves import not_negative as not_negative
from laplex._checks.solves import reverse_mode_only as reverse_mode_only
from laplex._checks.solves import right_hand_side as right_hand_side
from laplex._checks.solves import sample_count as sample_count
from laplex._checks.solves import warn_of_lost_digits as warn_of_lost_digits
from laplex._checks.tau import SMALLEST_TAU as SMALLEST_TAU
from laplex._checks.tau import SMALLEST_TAU_OF_SQUARES as SMALLEST_TAU_OF_SQUARES
from laplex._checks.tau import bad_tau as bad_tau
from laplex._checks.tau import is_length as is_length
from laplex._checks.tau import length_scale as length_scale
from laplex._checks.tau import positive_on_cpu as positive_on_cpu
from laplex._checks.tau import resolution as resolution
from laplex._checks.tau import valid_tau as valid_tau
from laplex._checks.tau import values as values
