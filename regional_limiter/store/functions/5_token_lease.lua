-- ---------------------------------------------------------------- token leases

-- The second implementation of regional_limiter/algorithms/token_lease.py.
local function lease(keys, args)
  local t = enter(args)
  local ms, key, p, s = floor(t / 1000), keys[1], limit_of(args[1]), {}
  if p.kind ~= kinds['1'] then error('APPORTION only token buckets are leased from') end
  share_for(s, p, key, t)
  local unit = p.unit
  local level, top, per_ms, time, earns, ahead, absent_full, rebased, _, out =
    look(redis.call('GET', key), p, ms, s.share, s.since, s.before, s.before_since)
  local changed, credited = false, 0
  for i = 3, #args - 2, 3 do
    local rest, known = taken_back(out, tonumber(args[i]), tonumber(args[i + 1]))
    if known then
      local unspent = tonumber(args[i + 2])
      out, changed, credited = rest, true, credited + unspent
      level = min(cap_at(time, top, unit, out), level + unspent * unit)
    end
  end
  local tokens, edge, ends = 0, 0, 0
  local leased_from = p.whole
  if p.adaptive and may_be_leased(t, key) then leased_from = s.kind == 1 and s.share > s.floor end
  if leased_from and not p.charge_denied and p.capacity >= @LEASE_CAPACITY_LEAST@
      and region_capacity(p.capacity, s.share, p.regions) >= @LEASE_CAPACITY_LEAST@ then
    tokens = min(tonumber(args[2]), floor(floor(level / unit) / @LEASE_LEVEL_PART@))
  end
  if tokens >= @LEASE_TOKENS_LEAST@ then
    local every = p.adaptive and @ADAPTIVE_EDGE_EVERY_MS@ or @EDGE_EVERY_MS@
    -- By the bucket's time, which a clock that went back a little has yet to reach.
    edge = (floor(time / every) + 2) * every
    ends = edge * 1000 - max(t, time * 1000)
    if p.adaptive then
      ends = min(ends, s.session_left)
      note_lease(key, p.domain, s.share)
    end
    level, out, changed = level - tokens * unit, given(out, edge, tokens), true
  else
    tokens = 0
  end
  if changed then earns, ahead = level, max(0, ahead) end
  local reset = reset_after(p, level, top, per_ms, earns, ahead, ms, out)
  if changed then
    local ttl = max(1, reset, absent_full)
    redis.call('SET', key, pack_bucket(p, time, level, s.share, rebased, out), 'PX', ttl)
  end
  local remaining = max(0, floor(level / unit))
  return {tokens, edge, ends, credited, remaining, reset, s.share, s.kind, s.session_left, s.consent_left}
end
