package replicate

import "time"

// minRoundInterval is the shortest interval between the begin of two rounds of Run. If a round takes
// long, the interval is roundShare times as long as the round. Without it a peer whose messages wake
// Run could keep a processor busy.
const (
	minRoundInterval = 2 * time.Millisecond
	roundShare       = 4
)

// nextRound returns the earliest begin of the next round of Run after a round.
func nextRound(begun, ended time.Time) time.Time {
	return begun.Add(max(minRoundInterval, roundShare*ended.Sub(begun)))
}
