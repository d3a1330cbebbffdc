-- ---------------------------------------------------------------- the variable: kept or lost as a whole (E1)

local var = nil

local function new_series(value, at) return {v = value, at = at, was = value, was_at = at} end

local function copy_series(s) return {v = s.v, at = s.at, was = s.was, was_at = s.was_at} end

local function turn(s, value, at)
  if value ~= s.v then s.was, s.was_at, s.v, s.at = s.v, s.at, value, at end
end

local function born(t)
  var = {
    last = t, written_at = t, born = t, instance = '', named_at = 0, session = 0, version = 0, ends = 0,
    consent = t + CONSENT_US, all_known = false, replid = '', default = new_series(FLOOR, t),
    leases = {}, leases_held = 0, bases = {}, domains_held = 0, base_version = -1, vector = {},
    leased = {}, leased_held = 0, leased_before = {}, leased_since = t,
    granted = {}, granted_held = 0, vouched = {}, vouched_version = -1, uses = {}, uses_held = 0,
    beats = {}, beats_held = 0, demand = {}, demand_held = 0, rules_version = -1, rules_blob = '',
  }
end

local function enter(args)
  if not floor then set_up() end
  local t = clock(args)
  if not var or t < var.last or t > var.last + GAP_US then born(t) else var.last = t end
  return t
end

-- ---------------------------------------------------------------- the share in force (E2) and its history (E4)

-- named: the floor that a set names, which counts where it is larger, and never beyond the base
local function floor_of(base, named)
  local usual = floor(base * @FLOOR_PER_MILLE@ / 1000)
  if named <= usual then return usual end
  return min(named, base)
end

local function in_force(s, t)
  local v, at, was, was_at = s.v, s.at, s.was, s.was_at
  local session_end, consent_end = var.ends, var.consent
  if session_end > consent_end then consent_end = session_end end
  local written_at = var.written_at
  if written_at < session_end and session_end <= t and session_end < consent_end and v ~= FLOOR then
    was, was_at, v, at = v, at, FLOOR, session_end
  end
  if written_at < consent_end and consent_end <= t and v ~= BASE then
    was, was_at, v, at = v, at, BASE, consent_end
  end
  return v, at, was, was_at
end

local function resolve(value, base, named)
  if value == BASE then return base end
  local least = floor_of(base, named)
  if value == FLOOR or value < least then return least end
  return value
end

-- held: since when which base, oldest first, of the last ones
local function turn_base(known, base, t)
  if base == known.series.v then return end
  turn(known.series, base, t)
  local held = known.held
  held[#held + 1] = {at = t, base = base}
  if #held > @BASES_REMEMBERED@ then
    for i = 1, #held do held[i] = held[i + 1] end
  end
end

-- named: the floor as the set names it, 0 if it does not
local function know_base(t, domain, version, base, named)
  local known = var.bases[domain]
  if not known then
    if var.domains_held >= DOMAINS_MOST then return end
    var.domains_held = var.domains_held + 1
    var.bases[domain] =
      {version = version, series = new_series(base, t), held = {{at = t, base = base}}, floor = new_series(named, t)}
  elseif version > known.version then
    known.version = version
    turn_base(known, base, t)
    turn(known.floor, named, t)
  elseif version == known.version then
    if base < known.series.v then turn_base(known, base, t) end
    if named < known.floor.v then turn(known.floor, named, t) end
  end
end

-- share, kind, since, share before, its since (in us), and what is not below the floor
local function share_of(t, key, domain)
  local lease = var.leases[key]
  local v, at, was, was_at = in_force(lease and lease.series or var.default, t)
  local known = var.bases[domain]
  local b, b_at, b_was, b_was_at = 0, var.born, 0, var.born
  local f, f_at, f_was, f_was_at = 0, var.born, 0, var.born
  if known then
    local s, n = known.series, known.floor
    b, b_at, b_was, b_was_at = s.v, s.at, s.was, s.was_at
    f, f_at, f_was, f_was_at = n.v, n.at, n.was, n.was_at
  end
  -- What each was just before the last change of any, and since when
  local since = max(at, b_at, f_at)
  if at < since then was, was_at = v, at end
  if b_at < since then b_was, b_was_at = b, b_at end
  if f_at < since then f_was, f_was_at = f, f_at end
  local kind = 1
  if v == BASE then kind = 2 elseif v == FLOOR then kind = 3 end
  local before_since = min(since, max(was_at, b_was_at, f_was_at))
  return resolve(v, b, f), kind, since, resolve(was, b_was, f_was), before_since, floor_of(b, f)
end

-- ---------------------------------------------------------------- which keys nodes have leased tokens of

-- What was leased is known for one to two turns: two tables instead of an end for each key.
local function turn_leased(t)
  local passed = t - var.leased_since
  if passed >= LEASE_REMEMBERED_US then
    var.leased_before = passed < 2 * LEASE_REMEMBERED_US and var.leased or {}
    var.leased, var.leased_held, var.leased_since = {}, 0, t
  end
end

local function may_be_leased(t, key)
  turn_leased(t)
  return var.leased[key] ~= nil or var.leased_held < LEASED_MOST
end

local function note_lease(key, domain, share)
  local known = var.leased[key]
  if not known then
    var.leased_held = var.leased_held + 1
    var.leased[key] = {share = share, domain = domain}
  else
    known.share, known.domain = max(share, known.share), domain
  end
end

-- Whether tokens of the key may be about that were leased under a larger share than its present one
local function rests(t, key)
  turn_leased(t)
  for _, known in pairs({var.leased[key] or false, var.leased_before[key] or false}) do
    if known and known.share > share_of(t, key, known.domain) then return true end
  end
  return false
end
