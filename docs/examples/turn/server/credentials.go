package server

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the algorithm of TURN's REST API
	"encoding/base64"
	"net"

	"github.com/pion/turn/v4"
)

// Password returns the password of a user: an HMAC of the name, by a secret that all servers share. So
// each of them can sign the requests that rebuild an allocation.
func Password(secret []byte, username string) string {
	mac := hmac.New(sha1.New, secret)
	mac.Write([]byte(username))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// authenticate returns the key of a user.
func (s *Server) authenticate(username, realm string, _ net.Addr) (key []byte, ok bool) {
	return turn.GenerateAuthKey(username, realm, Password(s.secret, username)), true
}
