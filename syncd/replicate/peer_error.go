package replicate

import "google.golang.org/grpc/status"

// peerError returns an error of a stream to a peer with the same status code and a text that is
// bounded and quoted, because the peer can choose it. It returns other errors unchanged.
func peerError(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	return status.Errorf(s.Code(), "%.1024q", s.Message())
}
