package replicate

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// certificateMargin is the time between the end of a stream and the end of its certificate.
	certificateMargin = time.Minute
	// minStreamAge is the minimum age of a stream, even with a certificate about to end.
	minStreamAge = 5 * time.Second
)

// errMaxAge ends a stream at its maximum age. The peer resumes on a new stream.
var errMaxAge = errors.New("maximum age of a stream reached")

// lifetime returns the age at which the stream ends, so that both sides authenticate each other
// again. A random part prevents that streams that began together also end together. So a
// certificate that was revoked or has ended is not used for longer than that.
func (s *outboundStream) lifetime() time.Duration {
	age := s.r.opt.MaxStreamAge
	// The random part is at most a tenth of the age.
	age -= rand.N(age/10 + 1)
	if s.caller.Until.IsZero() {
		return age
	}
	// A short certificate is used for at least half of its remaining validity.
	left := time.Until(s.caller.Until)
	return min(age, max(left-certificateMargin, left/2, minStreamAge))
}
