package peers

import (
	"crypto/x509"
	"net/url"
	"testing"
)

// TestObserverAcrossLabels: without allowed-names, a certificate that a pattern of observers matches only across dots or slashes may
// neither observe nor replicate.
func TestObserverAcrossLabels(t *testing.T) {
	t.Parallel()
	o := &CredentialsOptions{Observers: []string{"watch*", "spiffe://prod/watch*"}}
	for name, c := range map[string]struct{ replica, observer bool }{
		"lb1": {true, false}, "spiffe://prod/lb1": {true, false},
		"watch1": {false, true}, "spiffe://prod/watch1": {false, true},
		"watch1.example": {false, false}, "spiffe://prod/watch/1": {false, false}, "spiffe://prod/watch.a/1": {false, false},
	} {
		uri, err := url.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{URIs: []*url.URL{uri}}
		if got := o.replica(leaf); got != c.replica {
			t.Errorf("certificate of %s: got replica %t, want %t", name, got, c.replica)
		}
		if got := o.observer(leaf); got != c.observer {
			t.Errorf("certificate of %s: got observer %t, want %t", name, got, c.observer)
		}
	}
}
