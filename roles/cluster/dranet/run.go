package dranet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// settings are the daemon's flags.
type settings struct {
	socket, cniConfDir string
	kubeconfig, apiURL string
	collect            time.Duration
}

// minCollect is the shortest time between two lists of all ResourceClaims.
const minCollect = 100 * time.Millisecond

// parseFlags reads the flags. All faults are reported at once.
func parseFlags(version string, args []string) (*settings, error) {
	s := &settings{}
	f := process.NewFlags(name)
	f.StringVar(&s.socket, "socket", "", "`path` of the socket for DraNet's --webhook-url=unix://PATH; default: dranet/dranet.sock in the run directory")
	f.StringVar(&s.cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of networks; a profile is the name of one with the IPAM type range")
	f.StringVar(&s.kubeconfig, "kubeconfig-file", "", "`path` of a kubeconfig; default: the pod's service account")
	f.StringVar(&s.apiURL, "kube-api-url", "", "`URL` of the API server, instead of the kubeconfig's")
	f.DurationVar(&s.collect, "collect-interval", 10*time.Minute, "time between two searches for addresses of ResourceClaims that do not exist; the second one that finds an address releases it")
	errs, err := process.Parse(f, "give addresses of cluster-wide ranges to devices that DraNet attaches to pods", version, args)
	if err != nil {
		return nil, err
	}
	errs = append(errs, process.CheckPaths(map[string]string{"-socket": s.socket, "-cni-conf-dir": s.cniConfDir, "-kubeconfig-file": s.kubeconfig})...)
	if s.cniConfDir == "" {
		errs = append(errs, errors.New("-cni-conf-dir: give the directory of the networks"))
	}
	if s.collect < minCollect {
		errs = append(errs, fmt.Errorf("-collect-interval: %s is less than %s", s.collect, minCollect))
	}
	if len(errs) > 0 {
		return nil, roles.Usagef("%w", errors.Join(errs...))
	}
	return s, nil
}

// run runs the daemon until ctx ends. The addresses stay after that.
func run(ctx context.Context, h *roles.Host, args []string, read Reader) error {
	s, err := parseFlags(h.Program, args)
	if err != nil {
		return err
	}
	client, err := rest.Open(rest.Choose(s.kubeconfig, s.apiURL, func(name string) string { return process.Getenv(h.Env, name) }))
	if err != nil {
		return err
	}
	defer client.Close()
	if s.socket == "" {
		s.socket = filepath.Join(h.Store.RunDir(), name, name+".sock")
		if err := private(filepath.Dir(s.socket)); err != nil {
			return err
		}
	}
	l, unlock, err := service.Listen(s.socket) //nolint:contextcheck // bind(2) does not wait
	if err != nil {
		return err
	}
	defer unlock()
	p := &provider{host: h, confDir: s.cniConfDir, read: read}
	stop := process.Serve(l, p.handler(), h.Log)
	defer stop()
	h.Log.Info("listening for DraNet", "socket", s.socket, "networks", s.cniConfDir)
	c := collector{host: h, list: client.ResourceClaimUIDs}
	tick := time.NewTicker(s.collect)
	defer tick.Stop()
	for {
		c.collect(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// private makes the daemon's own directory, in which only root can reach the socket, also if a kubelet made it for a volume.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}
