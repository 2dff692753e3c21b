package daemon

import (
	"context"
	"log/slog"

	"mapsync/peers"
	"mapsync/syncd/config"
	"mapsync/syncd/replicate"
)

func openCredentials(c *config.Config, log *slog.Logger) (*peers.Credentials, error) {
	options := credentialsOptions(c)
	options.Logger = log
	if !c.TLS() {
		if !c.Standalone() {
			log.Warn("streams are not encrypted, tls-cert is not set", "insecure", c.Insecure,
				"hint", "set tls-cert, tls-key and tls-ca on all nodes and restart syncd")
		}
		return peers.Insecure(options), nil
	}
	return peers.NewCredentials(options)
}

func credentialsOptions(c *config.Config) peers.CredentialsOptions {
	return peers.CredentialsOptions{
		CertFile: c.TLSCert, KeyFile: c.TLSKey, CAFile: c.TLSCA, CRLFile: c.TLSCRL, NodeName: c.NodeName,
		AllowedNames: c.AllowedNames, Observers: c.Observers,
	}
}

// authenticate returns the identity and the rights that the caller of an incoming stream has
// proved.
func (d *Daemon) authenticate(ctx context.Context, node string) (replicate.Caller, error) {
	id, err := d.credentials.Identify(ctx, node)
	return replicate.Caller{Certificate: id.Certificate, Replica: id.Replica, Observer: id.Observer, Until: id.Until}, err
}
