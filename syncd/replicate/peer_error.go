package replicate

import "google.golang.org/grpc/status"

// peerError returns an error of a stream to a peer with the same status code and a text that is
// bounded and quoted, because the peer can choose it. A hostile text could otherwise fill the log
// or control the terminal of an operator. It returns other errors unchanged, nil included.
func peerError(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	return status.Errorf(s.Code(), "%.1024q", s.Message())
}
