-- ---------------------------------------------------------------- limits and their kinds

-- The number that begins a LIMIT -> a kind, one file each.  p is the parsed LIMIT, s what one call has seen:
--   parse(p, numbers)             takes the kind's own numbers out of the LIMIT; once for each LIMIT
--   examine(s, p, key, cost, ms)  -> price, held: allowed if price <= held.  Reads only, and leaves in s what it saw
--   finish(s, p, charge)          -> remaining, wait, reset.  s.reason is known; writes, and charges if it is told to
--   give_back(s, p, key, cost, ms)  -> remaining.  Writes
--   window(p, ms)                 (if the kind has it) -> which window ms lies in: a refund reaches no other
--   named(p, key, ms)             (if the key names a window) -> fails where that is not the one that ms lies in
--   reaches(p, window, now)       (if the kind has it) -> instead: whether a refund now reaches a charge of that window
--   renew(s, p, key, ms)          (if the kind has leases) -> whether s.holder still has one, renewed.  Writes
--   release(s, p, key, ms)        (if the kind has leases) -> whether s.holder had one, which is over now.  Writes
--   share(s, p, key, t)           (if an adaptive one is no part of a base) -> puts share, kind and before into s
-- and of flags: adaptive (follows a moving share), holder (each call has one more argument).
local kinds = {}

local limits, limits_held = {}, 0 -- a memory of parsed strings only; nothing of the protocol
local OK, LIMITED, EXCEEDS_CAPACITY, ZERO_LIMIT = 0, 1, 2, 3

local function region_capacity(capacity, share, regions)
  if share <= 0 or capacity <= 0 then return 0 end
  if capacity < regions then return floor(capacity * share / @SHARE_UNITS@) end
  return 1 + floor((capacity - regions) * share / @SHARE_UNITS@)
end

local function limit_of(text)
  local p = limits[text]
  if p then return p end
  local kind, capacity, numbers, charge_denied, sharing, regions, largest, base_version, base, floor_named, extra, domain =
    text:match('^(%d+) (%d+) (%S+) (%d) (%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not kind or not kinds[kind] then error('APPORTION a limit that cannot be read: ' .. text) end
  p = {
    kind = kinds[kind], capacity = tonumber(capacity),
    charge_denied = charge_denied ~= '0', was_allowed = charge_denied == '2', whole = sharing == '0', adaptive = sharing == '2',
    regions = tonumber(regions), base_version = tonumber(base_version), base = tonumber(base), floor = tonumber(floor_named),
    domain = domain,
  }
  if p.adaptive and not p.kind.adaptive then error('APPORTION a kind that cannot be adaptive: ' .. text) end
  p.largest = p.adaptive and region_capacity(p.capacity, tonumber(largest), p.regions) or p.capacity
  p.part = p.whole and p.capacity or region_capacity(p.capacity, p.base, p.regions) + tonumber(extra)
  local own = {}
  for number in numbers:gmatch('%d+') do own[#own + 1] = tonumber(number) end
  p.kind.parse(p, own)
  if limits_held >= LIMITS_REMEMBERED then limits, limits_held = {}, 0 end
  limits[text], limits_held = p, limits_held + 1
  return p
end
