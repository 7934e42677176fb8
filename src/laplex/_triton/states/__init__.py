r"""Gaussian processes with few states: the recursions of ``laplex._states``, by lanes that walk over chunks of points.

    matrices               small vectors and matrices, as tuples of one number per lane
    maps                   what a chunk does to the state that enters it: how such maps compose, and what they do
    transitions            Phi of every kind of block, and its derivatives
    programs               stage the points; walk over every chunk from the state that enters it
    programs_carry         from the maps of all chunks to the states that enter them, in groups of GROUP
    programs_pull          gradients, by a walk back over every chunk
    programs_chain         the recursions of any chain, whose transitions are read
    launch, chain          the likelihood and its pullback; the recursions; both with carry, between the walks

A lane is one thread, and its chunk is CHUNK consecutive points of a series. Numbers that a lane needs at a step lie
next to those of its neighbours: staged arrays are (field, CHUNK, lanes).

What a chunk does
    Let (S, f) be the state after the last point before a chunk, and (S_0, f_0) a guess of it. A walk over the chunk
    from the guess ends in (S_0', f_0'). With w, z and d as met on the way, let u_n be the derivative of p_n^T f_n in
    the f that enters the chunk, and

        J = product of (I - w_n p_n^T) T_n        N = sum of u_n u_n^T / d_n        r = sum of u_n z_n / d_n

    Then the exact end of the chunk is, for any E = S - S_0 and e = f - f_0,

        S' = S_0' + J Y J^T        f' = f_0' + J (e + Y (N e - r))        Y = E (I - N E)^-1

    (Lainiotis's partitioned filter). The differences E and e of the next chunk's entry to its own guess follow by
    adding X = S_0' - S_0 and b = f_0' - f_0, with the guess of the next chunk subtracted. So a chunk is a map (J, N, X,
    r, b) of differences, and maps in a row compose to such a map:

        Y = X_1 (I - N_2 X_1)^-1      D = I + Y N_2      J = J_2 D J_1      N = N_1 + J_1^T N_2 D J_1
        X = X_2 + J_2 Y J_2^T         r = r_1 + (D J_1)^T (r_2 - N_2 b_1)   b = b_2 + J_2 (D b_1 - Y r_2)

    A round walks over all chunks from their guesses, composes the maps of groups of chunks, of groups of groups and so
    on, and corrects all guesses. The first round is exact but for rounding errors: composed maps lose more digits than
    a walk. The next round starts from guesses that are nearly right, so that what it computes are small corrections,
    and its result is what one walk over all points would find.

One state
    Here -Q takes the place of S, with Q the variance of the state after a point: no step subtracts, nor does 1 - N E
    if the first guess of Q is 0. It is instead the smallest number whose inverse is harmless, because with two equal
    times and no noise d would be 0.

Back
    The gradients of the likelihood in the state after point n need only the N and r of all points after it, which obey

        f_bar = -2 quad_bar r        S_bar = quad_bar r r^T - logdet_bar N

    so that going back there are linear maps: N = N_1 + J_1^T N_2 J_1, r = r_1 + J_1^T r_2, with those of the last walk.

Literature
    D. G. Lainiotis, Partitioned estimation algorithms, II: linear estimation, Information Sciences 7 (1974): the maps.
    S. Sarkka, A. F. Garcia-Fernandez, Temporal parallelization of Bayesian smoothers, IEEE Transactions on Automatic
        Control 66 (2021), arXiv:1905.13002: parallel scans over such maps.
"""
