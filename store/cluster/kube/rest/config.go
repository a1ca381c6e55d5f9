package rest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// ServiceAccountDir is the directory in a pod that has its token, the cluster's CA
// and its namespace.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxCredentials bounds kubeconfigs, tokens and certificates.
const maxCredentials = 1 << 20

// Source returns the Config of an API server. It is called again if the server refuses the
// credentials, because other programs renew the files of tokens and certificates.
type Source func() (*Config, error)

// Config is the address of an API server and the credentials for it.
type Config struct {
	// Server is the API server's URL, which may have a path.
	Server *url.URL
	// Token is sent with each request. TokenFile, if set, is read for each request
	// instead.
	Token, TokenFile string
	TLS              web.TLS
}

// InCluster is the Source of a pod. Host and port are the values of
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. The rest is in dir, usually
// ServiceAccountDir.
func InCluster(host, port, dir string) Source {
	return func() (*Config, error) {
		if host == "" || port == "" {
			return nil, fmt.Errorf("%w: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: outside of a pod a kubeconfig is needed", cluster.ErrInvalid)
		}
		c := &Config{
			Server:    &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)},
			TokenFile: filepath.Join(dir, "token"),
			TLS:       web.TLS{CAFile: filepath.Join(dir, "ca.crt")},
		}
		return c, c.check()
	}
}

// Server is the Source for an API server without credentials, as for flannel's --kube-api-url.
func Server(address string) Source {
	return func() (*Config, error) {
		c := &Config{}
		var err error
		c.Server, err = parseServer(address)
		if err != nil {
			return nil, err
		}
		return c, c.check()
	}
}

// Kubeconfig is the Source of a kubeconfig file's current-context.
func Kubeconfig(path string) Source {
	return func() (*Config, error) {
		b, err := smallfile.Read(path, maxCredentials)
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
		c, err := parseKubeconfig(b, filepath.Dir(path))
		if err == nil {
			err = c.check()
		}
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		return c, nil
	}
}

// Choose returns the Source for a kubeconfig file, or without one for the server at address. An
// address beside a file replaces the file's server. Without both, the Source is that of the pod in
// which this process runs, and getenv returns its environment variables.
func Choose(kubeconfig, address string, getenv func(name string) string) Source {
	switch {
	case kubeconfig == "" && address != "":
		return Server(address)
	case kubeconfig == "":
		return InCluster(getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT"), ServiceAccountDir)
	}
	return func() (*Config, error) {
		c, err := Kubeconfig(kubeconfig)()
		if err != nil || address == "" {
			return c, err
		}
		other, err := Server(address)()
		if err != nil {
			return nil, err
		}
		c.Server = other.Server
		return c, nil
	}
}

func parseServer(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: server is %q: give https://host:port", cluster.ErrInvalid, s)
	}
	return u, nil
}

// check returns an error if credentials would be sent without encryption.
func (c *Config) check() error {
	if c.Server.Scheme == "http" && (c.Token != "" || c.TokenFile != "" || c.TLS.CertFile != "" || len(c.TLS.Cert) > 0) {
		return fmt.Errorf("%w: server %s: credentials are sent over https only", cluster.ErrInvalid, c.Server)
	}
	_, err := c.token()
	return err
}

// token returns the current token.
func (c *Config) token() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	b, err := smallfile.Read(c.TokenFile, maxCredentials)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	t := string(bytes.TrimSpace(b))
	return t, checkToken(t, c.TokenFile)
}

// checkToken returns an error for a token that cannot be part of a header (RFC 6750 §2.1).
func checkToken(t, where string) error {
	if t == "" {
		return fmt.Errorf("%w: %s: empty", cluster.ErrInvalid, where)
	}
	if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%w: %s: a token has neither spaces nor control characters", cluster.ErrInvalid, where)
	}
	return nil
}

// same reports whether two configurations are equal.
func (c *Config) same(o *Config) bool {
	a, b := c.TLS, o.TLS
	return *c.Server == *o.Server && c.Token == o.Token && c.TokenFile == o.TokenFile &&
		a.CAFile == b.CAFile && a.CertFile == b.CertFile && a.KeyFile == b.KeyFile && a.ServerName == b.ServerName &&
		bytes.Equal(a.CA, b.CA) && bytes.Equal(a.Cert, b.Cert) && bytes.Equal(a.Key, b.Key)
}

// errUnsupported marks a setting of a kubeconfig that this client does not support.
var errUnsupported = errors.New("not supported")
