-- ---------------------------------------------------------------- tokens that nodes hold as leases

-- The second implementation of regional_limiter/algorithms/tokens_out.py.
-- out: {edge, tokens, edge, tokens} by edge, where 0 tokens are nothing; nil: nothing is out, as nearly always.

local function new_out(edge, tokens, later, more)
  if tokens == 0 then edge, tokens, more = later, more, 0 end
  if more == 0 then later = 0 end
  if tokens > 0 then return {edge, tokens, later, more} end
end

local function cap_at(at, top, unit, out)
  if not out then return top end
  local tokens = 0
  for i = 1, 3, 2 do
    if out[i] > at then tokens = tokens + out[i + 1] end
  end
  return max(0, top - unit * tokens)
end

-- The level after elapsed under one cap
local function gained(level, elapsed, per_ms, top)
  if level >= top then return top end
  if elapsed <= 0 or per_ms == 0 then return level end
  if elapsed >= ceil((top - level) / per_ms) then return top end
  return level + elapsed * per_ms
end

-- The level at to of a bucket that held it at from
local function accrued(level, from, to, per_ms, top, unit, out)
  for i = 1, out and 3 or 0, 2 do
    local edge = out[i]
    if from < edge and edge < to then
      level = gained(level, edge - from, per_ms, cap_at(from, top, unit, out))
      from = edge
    end
  end
  return gained(level, to - from, per_ms, cap_at(from, top, unit, out))
end

-- When it will hold target, which at at it does not
local function reached(level, at, target, per_ms, top, unit, out)
  if out then
    for i = 1, 3, 2 do
      local edge = out[i]
      if edge > at then
        local cap = cap_at(at, top, unit, out)
        if target <= cap and ceil((target - level) / per_ms) <= edge - at then break end
        level, at = gained(level, edge - at, per_ms, cap), edge
      end
    end
  end
  return at + max(0, ceil((target - level) / per_ms))
end

local function still_out(out, now)
  if out[1] > now then return out end
  return out[3] > now and new_out(0, 0, out[3], out[4]) or nil
end

local function given(out, edge, tokens)
  if not out then return {edge, tokens, 0, 0} end
  for i = 1, 3, 2 do
    if out[i] == edge and out[i + 1] > 0 then
      local now = {out[1], out[2], out[3], out[4]}
      now[i + 1] = now[i + 1] + tokens
      return now
    end
  end
  if out[4] == 0 then
    if edge < out[1] then return {edge, tokens, out[1], out[2]} end
    return {out[1], out[2], edge, tokens}
  end
  -- A third edge is counted with the latest.
  if edge > out[3] then return {out[1], out[2], edge, out[4] + tokens} end
  if edge > out[1] then return {out[1], out[2], out[3], out[4] + tokens} end
  return {edge, tokens, out[3], out[2] + out[4]}
end

-- out without that lease, and whether it was known
local function taken_back(out, edge, tokens)
  for i = 1, 3, 2 do
    if out and out[i] == edge and 0 < tokens and tokens <= out[i + 1] then
      local now = {out[1], out[2], out[3], out[4]}
      now[i + 1] = now[i + 1] - tokens
      return new_out(now[1], now[2], now[3], now[4]), true
    end
  end
  return out, false
end
