"""What the dashboard remembers: rates and shares by the second and the minute, who held what when, incidents.

Reading order: ``cells`` (what is kept of a moment), ``growth`` (usage into cells), ``share_steps`` (the log into
hand-overs), ``incidents``, then ``file``, ``rollups``, ``stored_steps`` (where it is kept), ``recorder`` (who reads
the topics) and ``routes`` (who may ask).
"""
