package drill

import "encoding/binary"

// frameSize is the size of a request and of its answer, in bytes.
const frameSize = 128

// headerSize is the size of the part of a request that holds its session and number, in bytes.
const headerSize = 16

// frame is one request or answer. Every byte follows from the run's key, the session and the number
// of the exchange, so that neither side stores content.
type frame [frameSize]byte

// request sets f to the seq-th request of a session.
func (f *frame) request(key uint64, session, seq uint32) {
	binary.LittleEndian.PutUint64(f[:], uint64(session))
	binary.LittleEndian.PutUint64(f[8:], uint64(seq))
	state := key ^ uint64(session)<<32 ^ uint64(seq)
	for at := headerSize; at < frameSize; at += 8 {
		binary.LittleEndian.PutUint64(f[at:], splitmix(&state))
	}
}

// answer sets f to the answer of a backend to the seq-th request. The answer is the request under a
// key stream, so that an echo of the request is not accepted as an answer.
func (f *frame) answer(key uint64, session, seq uint32) {
	f.request(key, session, seq)
	state := ^key ^ uint64(seq)<<32 ^ uint64(session)
	for at := 0; at < frameSize; at += 8 {
		word := binary.LittleEndian.Uint64(f[at:]) ^ splitmix(&state)
		binary.LittleEndian.PutUint64(f[at:], word)
	}
}

// splitmix is Vigna's SplitMix64 generator.
func splitmix(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
