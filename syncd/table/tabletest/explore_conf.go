package tabletest

import "time"

const micro, milli = int64(time.Microsecond), int64(time.Millisecond)

// exploreConfs are the clusters that TestExplore explores. A step is so short that all events have
// about the same time, or longer than TimestampMargin but shorter than maxDisorder, or longer than
// both.
//
// Clusters with "coarse" in their name do more in each step, and thereby reach longer scenarios with
// fewer interleavings. Those with "dead" begin with a compact tombstone, those with "start" with a
// restart. If all nodes write the key (home is -1), the model checks only that the nodes converge.
var exploreConfs = []exploreConf{
	{name: "one/start", nodes: 1, home: 0, step: 10 * micro, start: true, fresh: true, less: -3},
	{name: "two", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true},
	{name: "two/fresh", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, fresh: true},
	{name: "two/moment", nodes: 2, home: 0, step: 10 * micro, scans: true},
	{name: "two/disorder", nodes: 2, home: 0, step: 2 * milli},
	{name: "two/hooks", nodes: 2, home: 0, step: 10 * micro, crash: true, fresh: true},
	{name: "two/shared", nodes: 2, home: -1, step: 10 * micro, less: 1},
	{name: "two/skewed", nodes: 2, home: 0, step: 10 * milli, ahead: int64(time.Hour), crash: true},
	{name: "two/lost", nodes: 2, home: 0, step: 10 * milli, crash: true, lost: true},
	{name: "two/evict", nodes: 2, home: 0, step: 10 * micro, evict: true},
	{name: "two/evict/crash", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, evict: true, less: 1},
	{name: "two/evict/scans", nodes: 2, home: 0, step: 10 * micro, scans: true, evict: true},
	{name: "two/evict/unseen", nodes: 2, home: 0, step: 10 * milli, scans: true, evict: true, unseen: true, less: 1},
	{name: "two/evict/calls", nodes: 2, home: 0, step: 10 * milli, scans: true, evict: true, unseen: true, calls: true, less: 1},
	{name: "two/evict/shared", nodes: 2, home: -1, step: 10 * micro, evict: true},
	{name: "two/evict/start", nodes: 2, home: 0, step: 10 * micro, start: true, evict: true},
	{name: "two/start", nodes: 2, home: 0, step: 10 * micro, start: true, fresh: true},
	{name: "two/coarse", nodes: 2, home: 0, step: 10 * micro, scans: true, crash: true, coarse: true},
	{name: "two/coarse/tick", nodes: 2, home: 0, step: micro, tick: 10 * milli, scans: true, keys: true, coarse: true},
	{
		name: "two/coarse/reread", nodes: 2, home: 0, step: micro, tick: 10 * milli, scans: true, keys: true, coarse: true,
		only: []exploreAction{actChange, actEvent, actSend, actWork, actScan}, less: -4,
	},
	{
		name: "two/coarse/race", nodes: 2, home: -1, step: 10 * micro, coarse: true,
		only: []exploreAction{actWrite, actChange, actEvent, actSend, actWork},
	},
	{name: "two/coarse/shared", nodes: 2, home: -1, step: 10 * micro, scans: true, coarse: true, less: 1},
	{name: "two/coarse/hooks", nodes: 2, home: -1, step: 10 * micro, coarse: true, less: 1},
	{name: "two/coarse/evict", nodes: 2, home: -1, step: 10 * micro, evict: true, coarse: true},
	{name: "two/dead", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, dead: true},
	{name: "two/dead/moment", nodes: 2, home: -1, step: 10 * micro, scans: true, dead: true},
	{name: "two/dead/start", nodes: 2, home: 0, step: 10 * micro, start: true, dead: true},
	{name: "two/coarse/dead", nodes: 2, home: -1, step: 10 * micro, scans: true, crash: true, coarse: true, dead: true, less: 1},
	{name: "two/any", nodes: 2, home: 0, step: 10 * milli, crash: true, any: true},
	{name: "two/any/scans", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, any: true, less: 1},
	{name: "two/any/moment", nodes: 2, home: 0, step: 10 * micro, scans: true, any: true},
	{name: "two/any/start", nodes: 2, home: 0, step: 10 * milli, start: true, any: true},
	{name: "three/any", nodes: 3, home: 0, step: 10 * milli, crash: true, coarse: true, any: true},
	{name: "two/filters", nodes: 2, home: 0, step: 10 * milli, crash: true, filters: true, coarse: true},
	{name: "two/filters/scans", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, filters: true, coarse: true, less: 1},
	{name: "two/clocks", nodes: 2, home: 0, step: 10 * milli, crash: true, steps: true, coarse: true, less: 1},
	{name: "two/clocks/shared", nodes: 2, home: -1, step: 10 * milli, steps: true, coarse: true, less: 1},
	{name: "two/layouts", nodes: 2, home: 0, step: 10 * milli, scans: true, layouts: true, coarse: true, less: 2},
	{name: "two/layouts/crash", nodes: 2, home: 0, step: 10 * milli, crash: true, layouts: true, coarse: true, less: 2},
	{name: "two/rekeys", nodes: 2, home: 0, step: 10 * milli, rekeys: true, filters: true, coarse: true, less: 2},
	{name: "two/limit", nodes: 2, home: 0, step: 10 * milli, crash: true, limit: true, coarse: true},
	{name: "two/timers", nodes: 2, home: -1, step: 10 * milli, scans: true, crash: true, timers: true, coarse: true, less: 2},
	{name: "three/filters", nodes: 3, home: 0, step: 10 * milli, filters: true, coarse: true, less: -1},
	{name: "three/dead", nodes: 3, home: -1, step: 10 * milli, dead: true},
	{name: "three", nodes: 3, home: 0, step: 10 * milli, crash: true},
	{name: "three/moment", nodes: 3, home: 0, step: 10 * micro, scans: true},
	{name: "three/shared", nodes: 3, home: -1, step: 10 * micro},
	{name: "three/evict", nodes: 3, home: 0, step: 10 * milli, crash: true, evict: true, coarse: true},
	{name: "three/bare", nodes: 3, home: 0, step: 10 * milli, crash: true, lost: true, coarse: true, bare: 1},
	{name: "three/coarse", nodes: 3, home: 0, step: 10 * milli, crash: true, coarse: true},
}
