package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/cnibox/cnibox/internal/smallfile"
)

// maxFile bounds the size of certificate chains, keys and tokens.
const maxFile = 1 << 20

// TLS has the credentials of both sides. Files are read for every connection, so that
// renewed certificates apply from the next connection on.
type TLS struct {
	// CAFile or CA (PEM) has the authorities for the server's certificate. If both are empty, the
	// system's roots are used.
	CAFile string
	CA     []byte
	// CertFile and KeyFile, or Cert and Key (PEM), are the client's certificate.
	CertFile, KeyFile string
	Cert, Key         []byte
	// ServerName is the expected name in the server's certificate. Empty means the name in the URL.
	ServerName string
}

// config reads the files.
func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	ca, err := data(t.CAFile, t.CA)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	if ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("read CA %s: holds no PEM certificate", t.CAFile)
		}
	}
	cert, err := data(t.CertFile, t.Cert)
	if err != nil {
		return nil, fmt.Errorf("read client certificate: %w", err)
	}
	key, err := data(t.KeyFile, t.Key)
	if err != nil {
		return nil, fmt.Errorf("read client key: %w", err)
	}
	if (cert == nil) != (key == nil) {
		return nil, errors.New("client certificate and key: one is given without the other")
	}
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate %s: %w", t.CertFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// dial returns a function that connects with the current content of the files.
func (t *TLS) dial(d *net.Dialer) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config, err := t.config()
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, addr)
	}
}

// data returns the given bytes, or else the content of the file, or nil if neither is set.
func data(path string, given []byte) ([]byte, error) {
	if len(given) > 0 || path == "" {
		return given, nil
	}
	return ReadFile(path)
}

// ReadFile reads a file with credentials. Its size is bounded and it must not be
// empty.
func ReadFile(path string) ([]byte, error) {
	b, err := smallfile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("read %s: empty", path)
	}
	return b, nil
}
