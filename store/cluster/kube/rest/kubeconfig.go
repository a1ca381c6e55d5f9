package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/store/cluster"
)

// kubeconfig has the fields of the file that are used here
// (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/).
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []namedCluster `json:"clusters"`
	Users    []namedUser    `json:"users"`
}

type namedCluster struct {
	Name    string      `json:"name"`
	Cluster clusterInfo `json:"cluster"`
}

type namedUser struct {
	Name string   `json:"name"`
	User authInfo `json:"user"`
}

type clusterInfo struct {
	Server        string `json:"server"`
	CAFile        string `json:"certificate-authority"`
	CA            []byte `json:"certificate-authority-data"`
	TLSServerName string `json:"tls-server-name"`
	Insecure      bool   `json:"insecure-skip-tls-verify"`
	ProxyURL      string `json:"proxy-url"`
}

type authInfo struct {
	Token        string          `json:"token"`
	TokenFile    string          `json:"tokenFile"`
	CertFile     string          `json:"client-certificate"`
	Cert         []byte          `json:"client-certificate-data"`
	KeyFile      string          `json:"client-key"`
	Key          []byte          `json:"client-key-data"`
	Username     string          `json:"username"`
	Password     string          `json:"password"`
	Impersonate  string          `json:"as"`
	AuthProvider json.RawMessage `json:"auth-provider"`
	Exec         json.RawMessage `json:"exec"`
}

// parseKubeconfig decodes a kubeconfig. Relative paths in it are relative to dir. Its error has all
// faults of the current context.
func parseKubeconfig(file []byte, dir string) (*Config, error) {
	doc, err := yaml.ToJSON(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	var k kubeconfig
	if err := json.Unmarshal(doc, &k); err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	info, user, err := k.current()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	in := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	c := &Config{Token: user.Token, TokenFile: in(user.TokenFile)}
	faults := append(info.refuse(), user.refuse()...)
	c.Server, err = parseServer(info.Server)
	if err != nil {
		faults = append(faults, err)
	}
	if c.Token != "" {
		// A token file takes precedence over token, which may be outdated.
		if c.TokenFile != "" {
			c.Token = ""
		} else if err := checkToken(c.Token, "token"); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, errors.Join(faults...))
	}
	c.TLS.CA, c.TLS.Cert, c.TLS.Key, c.TLS.ServerName = info.CA, user.Cert, user.Key, info.TLSServerName
	if len(c.TLS.CA) == 0 {
		c.TLS.CAFile = in(info.CAFile)
	}
	if len(c.TLS.Cert) == 0 {
		c.TLS.CertFile = in(user.CertFile)
	}
	if len(c.TLS.Key) == 0 {
		c.TLS.KeyFile = in(user.KeyFile)
	}
	return c, nil
}

// current finds the cluster and the user of the current context.
func (k *kubeconfig) current() (*clusterInfo, *authInfo, error) {
	if k.CurrentContext == "" {
		return nil, nil, errors.New("current-context is missing")
	}
	for i, of := range k.Contexts {
		if of.Name != k.CurrentContext {
			continue
		}
		info := slices.IndexFunc(k.Clusters, func(c namedCluster) bool { return c.Name == of.Context.Cluster })
		user := slices.IndexFunc(k.Users, func(u namedUser) bool { return u.Name == of.Context.User })
		switch {
		case info < 0:
			return nil, nil, fmt.Errorf("contexts[%d].context.cluster is %q: there is no such cluster", i, of.Context.Cluster)
		case user >= 0:
			return &k.Clusters[info].Cluster, &k.Users[user].User, nil
		case of.Context.User != "":
			return nil, nil, fmt.Errorf("contexts[%d].context.user is %q: there is no such user", i, of.Context.User)
		}
		return &k.Clusters[info].Cluster, &authInfo{}, nil
	}
	return nil, nil, fmt.Errorf("current-context is %q: there is no such context", k.CurrentContext)
}

// refuse returns an error for each setting that would otherwise be ignored silently.
func (c *clusterInfo) refuse() (faults []error) {
	if c.Insecure {
		faults = append(faults, fmt.Errorf("insecure-skip-tls-verify: %w: give certificate-authority or certificate-authority-data", errUnsupported))
	}
	if c.ProxyURL != "" {
		faults = append(faults, fmt.Errorf("proxy-url: %w: give a server that is reached without a proxy", errUnsupported))
	}
	return faults
}

func (u *authInfo) refuse() (faults []error) {
	const instead = "give token, tokenFile or client-certificate and client-key"
	given := func(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
	for _, f := range []struct {
		key   string
		given bool
	}{
		{"exec", given(u.Exec)},
		{"auth-provider", given(u.AuthProvider)},
		{"username and password", u.Username != "" || u.Password != ""},
		{"as", u.Impersonate != ""},
	} {
		if f.given {
			faults = append(faults, fmt.Errorf("%s: %w: %s", f.key, errUnsupported, instead))
		}
	}
	return faults
}
