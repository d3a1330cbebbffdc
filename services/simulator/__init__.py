"""What a limit will do in a geography, before it is deployed there: the real code on a virtual clock.

``world`` runs agents, leaders and enforcement points of several regions over links with delays; ``traces`` says
what is asked where and when; ``baselines`` are other ways to split a limit, under the same requests; ``run``
drives them, ``measure`` counts, ``report`` and ``page`` show it.
"""
