package process

import (
	"errors"
	"flag"

	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Etcd are the flags for etcd.
type Etcd struct {
	Endpoints              []string
	Prefix, User, Password string
	TLS                    web.TLS
}

// Register declares the flags. variable is the environment variable for the password.
func (e *Etcd) Register(f *flag.FlagSet, variable string) {
	f.Func("etcd-endpoints", "use etcd as the registry: comma-separated `URLs`", func(v string) error {
		e.Endpoints = SplitList(v)
		if len(e.Endpoints) == 0 {
			return errors.New("names no URL: give http://127.0.0.1:2379, or leave the flag out")
		}
		return nil
	})
	f.StringVar(&e.Prefix, "etcd-prefix", etcd.DefaultPrefix, "`prefix` of the keys in etcd")
	f.StringVar(&e.TLS.CAFile, "etcd-cafile", "", "`path` of the CA certificates for etcd")
	f.StringVar(&e.TLS.CertFile, "etcd-certfile", "", "`path` of the client's certificate")
	f.StringVar(&e.TLS.KeyFile, "etcd-keyfile", "", "`path` of the client's key")
	f.StringVar(&e.User, "etcd-username", "", "`name` of a user of etcd")
	f.StringVar(&e.Password, "etcd-password", "", "`password` of the user; better in "+variable)
}

// Check checks the combination of flags.
func (e *Etcd) Check() error {
	if (e.TLS.CertFile == "") != (e.TLS.KeyFile == "") {
		return errors.New("-etcd-certfile and -etcd-keyfile: give both or neither")
	}
	return nil
}

// Paths returns the flags that are paths, by name.
func (e *Etcd) Paths() map[string]string {
	return map[string]string{"-etcd-cafile": e.TLS.CAFile, "-etcd-certfile": e.TLS.CertFile, "-etcd-keyfile": e.TLS.KeyFile}
}

// Options returns the options of a registry.
func (e *Etcd) Options() etcd.Options {
	o := etcd.Options{Endpoints: e.Endpoints, Prefix: e.Prefix, Username: e.User, Password: e.Password}
	if e.TLS.CAFile != "" || e.TLS.CertFile != "" {
		o.TLS = &e.TLS
	}
	return o
}
