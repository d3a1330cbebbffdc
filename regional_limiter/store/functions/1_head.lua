#!lua name=apportion_@VERSION@
-- One enforcement point: decides and charges checks, and holds the shares in force.  The second implementation of
-- regional_limiter/algorithms and regional_limiter/model/enforcement.py; tests/golden and tests/contract drive both
-- with the same sequences.  Built by regional_limiter/store/library.py, which also has every wire in Python.
--
-- The wire.  Every function's name ends in _@VERSION@.  All numbers are decimal strings in, integers out.
-- LIMIT is one string:
--   "kind capacity numbers charge_denied sharing regions largest_share base_version base floor extra domain"
--   kind and its numbers, joined by commas: 1 token bucket (tokens, period_ms), 2 fixed window (window_ms; of a
--   calendar: four edges in ms), 3 GCRA (as 1), 4 leaky bucket (as 1, queue), 5 sliding window by two counts and 6 by
--   a log (window_ms), 7 concurrency (lease_ms); charge_denied 0 no, 1 yes, 2 yes, and what was charged so is answered
--   and remembered as allowed, as it was by a node; sharing 0 whole, 1 static, 2 adaptive.  It is the same for every
--   call of a rule (of a calendar: until the next edge), so it is parsed once and remembered.
-- VERDICT is nine integers: allowed (0 no, 1 yes; 2 more in an answer that is given again; 4 more for each TURN), reason (0 ok, 1 limited,
--   2 exceeds_capacity, 3 zero_limit), remaining, wait in ms (denied: until it is worth to ask again, -1 never;
--   allowed: until it is this request's turn, or below 0: so many slots its holder had before), reset_after_ms,
--   share, share kind (0 whole, 1 lease, 2 base, 3 floor), session left in us, consent left in us.
-- BUCKET: the very key that the bucket is stored under.  Redis is told no other, and goes by it while a slot moves: it
--   serves what is there, and sends on what is not.  Of a fixed window it ends in ":" and which window (its number; of a
--   calendar its start in ms) by the caller's clock; the bucket's own name, by which shares and demand go, is without it.
-- HOLDER: who takes or gives back (12 bytes), one for each rule of a kind that has holders, in their order.
--
-- check          keys BUCKET x n [, RECORD, CHARGE x n]   args n, (cost, LIMIT) x n, HOLDER.. [, ASKED]
--                                                                  -> VERDICT x n, or -1: RECORD is of a request that
--                                                                  asked for something else, and nothing was done;
--                                                                  where every rule allows at once, follows no share
--                                                                  and there is no RECORD: (-1 - remaining,
--                                                                  reset_after_ms) x n
-- refund         keys BUCKET x n [, RECORD, CHARGE x n]   args n, (cost, LIMIT) x n, HOLDER.. [, ASKED, TURN]
--                                                                  -> given back, remaining (x n); nothing if the
--                                                                  request has had another turn since (TURN -: any)
-- renew          keys BUCKET x n   args n, (cost, LIMIT) x n, HOLDER..     -> whether still held (x n)
-- release        keys BUCKET x n, RECORD, CHARGE x n      args n, (cost, LIMIT) x n, HOLDER.., ASKED
--                                                                  -> whether anything was held (x n)
-- lease          keys BUCKET                            args LIMIT, want, (edge_ms, tokens, unspent)..
--                                                                  -> tokens, edge_ms, ends_in_us, credited,
--                                                                  remaining, reset_after_ms, share, share kind,
--                                                                  session left in us, consent left in us
-- touch          no keys   args node, beat blob                 -> time_us, rules_version, base_version,
--                                                                  nodes younger than 5 s, consent_left_us,
--                                                                  m, (domain, base) x m, floors among them
-- offer          no keys   args (bucket key, cost) x n          -> keys held
-- collect        no keys   args -                               -> rules_version, m, (key, cost) x m, (blob, age_us)..
-- write          no keys   args nonce, instance, session, version, until_us, extend, all_known, base_version,
--                               m, (key, value) x m, (domain, base)..
--                                                               -> accepted, instance, time_us, age_us, session, version,
--                                                                  keys of which leased tokens may be about..
-- windows        no keys   args instance, base_version, d, (domain, since_ms) x d,
--                               (key, window, end_ms, total, before)..
--                                                               -> its instance (another took nothing), time_us, (key,
--                                                                  window, end_ms, used, offered, part, granted,
--                                                                  capacity, regions)..
-- publish_rules  no keys   args version, blob                   -> version now known
-- fetch_rules    no keys   args -                               -> version (-1: none), blob
--
-- The error @OTHER_WINDOWS@ <TIME in ms>: a window that a call names is not the one of this clock, or the edges that it has
-- brought are not around it.  Nothing was done.
--
-- RECORD holds a check's answer for 60 s behind ASKED (a digest of its buckets and costs, @ASKED_BYTES@ bytes), CHARGE what of its cost may still be given back ("cost window": into the
-- window of that number only); both carry the hash tag of the buckets.

local GAP_US, CONSENT_US = @GAP_US@, @CONSENT_US@
local BASE, FLOOR, DEFAULT = -1, -2, -3
local LEASED_MOST, LEASE_REMEMBERED_US = @LEASED_MOST@, @LEASE_REMEMBERED_US@
local LEASES_MOST, LEASES_KEPT, DOMAINS_MOST = @LEASES_MOST@, @LEASES_KEPT@, @DOMAINS_MOST@
local DEMAND_MOST, DEMAND_A_REPLY, BEATS_MOST, BEAT_YOUNG_US =
  @DEMAND_MOST@, @DEMAND_A_REPLY@, @BEATS_MOST@, @BEAT_YOUNG_US@
local LIMITS_REMEMBERED = 4096
local RETRY_FOR_LARGER_SHARE_MS, SHARE_ZERO_RESET_MS = @RETRY_FOR_LARGER_SHARE_MS@, @SHARE_ZERO_RESET_MS@
local STEP_KEPT_MS, REBASE_EVERY_MS, RECORD_MS = @STEP_KEPT_MS@, @REBASE_EVERY_MS@, @RECORD_MS@
local EXACT, ASKED_BYTES = @EXACT@, @ASKED_BYTES@

-- A library sees no standard function while it loads: the first call sets these.
local floor, ceil, abs, max, min, pack, unpack_fields, byte, tonumber, pairs

--@clock begin
local function clock(args)
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
--@clock end

local formats = {} -- head byte -> format of a packed bucket, and its length
local lengths = {}
local divisors, divisor_index = {}, {} -- of a day in milliseconds, in order, and their places from 0 on

local function set_up()
  floor, ceil, abs, max, min = math.floor, math.ceil, math.abs, math.max, math.min
  pack, unpack_fields, byte = struct.pack, struct.unpack, string.byte
  local capacity_sizes, period_sizes, level_sizes = {1, 2, 3, 6}, {1, 2, 3, 5}, {2, 3, 4, 7}
  local tails = {[0] = 'I2I6I5I6I5I6', '', 'I2', 'I2I5'}
  for layout = 0, 3 do
    for c = 0, 3 do
      for p = 0, 3 do
        for l = 0, 3 do
          local head = layout * 64 + c * 16 + p * 4 + l
          local sizes = 'I' .. capacity_sizes[c + 1] .. 'I' .. period_sizes[p + 1] .. 'i' .. level_sizes[l + 1]
          formats[head] = '<BI5' .. sizes .. tails[layout]
          lengths[head] = struct.size(formats[head])
        end
      end
    end
  end
  for number = 1, 9295 do -- the root of a day
    if 86400000 % number == 0 then divisors[#divisors + 1] = number end
  end
  for i = #divisors, 1, -1 do divisors[#divisors + 1] = 86400000 / divisors[i] end
  for i = 1, #divisors do divisor_index[divisors[i]] = i - 1 end
  tonumber, pairs = _G.tonumber, _G.pairs
end
