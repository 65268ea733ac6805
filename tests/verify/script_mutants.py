# ruff: noqa: E501 - the patches are lines of other files
"""Broken guarantees of the broker's scripts."""

from __future__ import annotations

from tests.verify.mutant import Mutant, lua

HELD = "  if (held[1] ~= token and held[3] ~= token and not held[4]) or not held[2] or held[2] == '' then"
NO_GUARD = "local no = guard_done(K.lease, A.token)\nif no then return no end\n"
ACK_GUARD = "local no = fenced(K.lease, A.token)\n  if no then return no end\n  renew(K.lease, A.token)"
KEPT = "  if found[2] == '1' and A.lasts == '1' then redis.call('RENAME', K.under_way, K.before) end"

SCRIPTS = [
    lua("overlap", "confirm", "if repeated == 'some' then return broken(", "if false then return broken(", begin=5),
    lua("unfenced", "_shared", HELD, "  if false then", begin=3),
    lua("confirm without fencing", "confirm", NO_GUARD, begin=5),
    lua("confirm beyond the next", "confirm", "if m ~= cursor + 1 or mb[1] ~= 'sealed' then", "if false then", begin=5),
    lua(
        "cursor moved with a gap",
        "confirm",
        "if all == range_text(0, total - 1) then",
        "if string.match(all, '%-(%d+)$') == text(total - 1) then",
        begin=3,
    ),
    Mutant(
        "attempts are not fenced",
        "broker/scripts/leases/attempt.lua",
        {
            "if till > 0 and free > now then": "if false then",
            "return {'ok', l[5], l[3], l[4], ''}": "redis.call('HDEL', K.lease, 'attempt') return {'ok', A.token, l[3], l[4], ''}",
        },
        "attempts",
    ),
    lua("begin_ack unguarded", "begin_ack", "if tonumber(A.to) > limit then", "if false then", begin=4),
    lua("begin_ack unfenced", "begin_ack", ACK_GUARD, "renew(K.lease, A.token)", begin=4),
    lua(
        "begin_ack by sealed alone",
        "begin_ack",
        "limit = math.min(limit, number(redis.call('HGET', key, 'cursor')))",
        begin=5,
    ),
    lua("commit_ack unfenced", "commit_ack", ACK_GUARD, "renew(K.lease, A.token)", begin=4),
    lua(
        "commit_ack of what was not begun",
        "commit_ack",
        "if a[2] ~= A.from or a[3] ~= A.to then",
        "if false then",
        begin=4,
    ),
    lua(
        "degraded does not halt",
        "_shared",
        "if p[1] == 'stopped' or p[1] == 'degraded' then",
        "if p[1] == 'stopped' then",
        begin=4,
    ),
    lua(
        "stopped does not halt",
        "_shared",
        "if p[1] == 'stopped' or p[1] == 'degraded' then",
        "if p[1] == 'degraded' then",
        begin=4,
    ),
    lua(
        "release leaves one behind",
        "release",
        "if tonumber(A.expect) >= 0 and number(redis.call('HGET', K.pipeline, 'sealed')) > tonumber(A.expect) then",
        "if false then",
        begin=4,
    ),
    lua(
        "stage by the last",
        "stage",
        "if redis.call('HEXISTS', K.micro_batch, 'stage:' .. A.node) == 0 then",
        "if true then",
        begin=5,
    ),
    lua("seal by the last", "seal", "if mb[1] ~= 'open' then return", "if false then return", begin=4),
    lua(
        "restage keeps the index",
        "restage",
        "if not seen[partition] then redis.call('HSET', K.each[leases + i], partition, index) end",
        "",
        "restage",
    ),
    lua(
        "restage keeps what was staged",
        "restage",
        "  redis.call('HDEL', K.micro_batch, 'stage:' .. node, 'first:' .. node, 'won:' .. node)\n",
        "",
        "restage",
    ),
    lua(
        "restage fences nobody",
        "restage",
        "text(math.max(token, now_us())), 'owner', '', 'until', '0')",
        "l[1])",
        "restage",
    ),
    lua(
        "restage of what is sealed",
        "restage",
        "if redis.call('HGET', K.pipeline, 'unsealed') ~= A.m then return {'ok'} end",
        "",
        "restage",
    ),
    lua(
        "a lease held by a clock that went back",
        "acquire",
        "local till = within(l[3], now, l[6])",
        "local till = number(l[3])",
        "clocks",
        begin=69,
    ),
    lua(
        "an attempt held by a clock that went back",
        "attempt",
        "local till = within(l[6], now, l[3])",
        "local till = number(l[6])",
        "clocks",
        begin=251,
    ),
    lua("a lease given twice", "acquire", "if l[2] and l[2] ~= '' and free > now then", "if false then", begin=4),
    lua(
        "a token given twice",
        "acquire",
        "math.max(number(l[1]) + 1, number(l[7]) + 1, number(l[8]) + 1, now)",
        "math.max(number(l[1]), 1)",
        begin=3,
    ),
    lua(
        "begin_collect unguarded",
        "begin_collect",
        "  if passed < m then return broken(",
        "  if false then return broken(",
        begin=5,
    ),
    lua(
        "end_collect unguarded",
        "end_collect",
        "if mb[1] ~= 'collecting' then",
        "if false then",
        begin=4,
    ),
    lua(
        "a vote counts twice",
        "vote",
        "local skip = math.max(0, math.min(count, following - ordinal))",
        "local skip = 0",
        "collect",
    ),
    lua(
        "a stop forgets what was delivered",
        "confirm",
        "guard_done(K.lease, A.token)",
        "guard(K.pipeline, K.lease, A.token, K.destination)",
        "trip",
        begin=31,
    ),
    lua(
        "an empty read is progress",
        "stage",
        "  if attempts then redis.call('HSET', K.lease, 'attempts', attempts) end\n",
        "",
        "queue",
    ),
    # What frees memory
    lua(
        "an ack is refused where Redis is full",
        "commit_ack",
        "-- @returns ok",
        "-- @grows\n-- @returns ok",
        "full",
    ),
    # Runs that last
    lua("the run before is not kept", "begin_run", KEPT, "", "handover", begin=5056),
    # Several tasks
    lua(
        "what several tasks have confirmed is forgotten",
        "merge",
        "joined(K.destination, 'ranges', A.ranges)\n",
        "''\n",
        "divided",
    ),
    # Several micro-batches at once
    lua(
        "the cursor moves over a micro-batch that is not whole",
        "whole",
        "if complete and m == cursor + 1 then\n",
        "if complete then\n",
        "together",
    ),
    lua(
        "the cursor passes the rest of a group",
        "_shared_divisions",
        "    if open then\n      redis.call('HSET', destination, 'divided', divided)\n      return\n    end\n",
        "",
        "together",
    ),
    lua(
        "what was confirmed of a younger micro-batch is forgotten",
        "_shared_divisions",
        "      if open and have then redis.call('HSET', destination, 'shard:' .. i % shards, have) end\n",
        "",
        "together",
    ),
    # What is sent again
    lua(
        "settle unfenced",
        "settle",
        "local no = guard_done(K.lease, A.token)\nif no then return no end\n",
        "",
        "resend",
        begin=22,
    ),
    lua(
        "letters leave the index before they are sent",
        "claim",
        "    redis.call('HSET', K.redrive, letter, was)\n",
        "    redis.call('HSET', K.redrive, letter, was)\n    redis.call('HDEL', K.dead, letter)\n",
        "resend",
        begin=96,
    ),
]
