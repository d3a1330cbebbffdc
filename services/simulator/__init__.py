"""What a limit will do in a geography, before it is deployed there: the real code on a virtual clock.

The world is ``global_sync.simulation``.  ``traces`` says what is asked where and when; ``baselines`` are other ways
to split a limit, under the same requests; ``run`` drives them, ``measure`` counts, ``report`` and ``page`` show it.
"""
