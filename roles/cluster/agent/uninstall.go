package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// uninstallRetry is the time between two attempts to uninstall.
const uninstallRetry = 2 * time.Second

// errAttached means that pods are still attached.
var errAttached = errors.New("pods are still attached: drain the node")

// uninstall removes from the node what the agent and the plugins made and installed. While pods are
// attached it waits and changes nothing, because the runtime needs the plugins to detach them. At the end
// it reports that it is ready and waits for ctx, so that the rollout of a DaemonSet shows which nodes are
// done.
func uninstall(ctx context.Context, h *roles.Host, set *settings) error {
	a := &agent{host: h, log: h.Log, knowledge: knowledge{set: set}, reporter: reporter{log: h.Log, install: newInstallation(set, h.Executable)}}
	a.setUninstalled(errors.New("starting"))
	if addr := set.healthAddr(); addr != "" {
		end, err := a.serveHealth(ctx, addr)
		if err != nil {
			return err
		}
		defer end()
	}
	tick := time.NewTicker(uninstallRetry)
	defer tick.Stop()
	removed := false
	for reason := ""; ; {
		var err error
		if !removed {
			err = a.tryUninstall(ctx)
			removed = err == nil
		}
		if is := a.setUninstalled(err); is != reason {
			reason = is
			h.Log.Info("uninstall", "done", removed, "reason", reason)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// setUninstalled makes the result of an attempt available to health checks and returns its text.
func (a *agent) setUninstalled(err error) string {
	s := &agentState{finished: time.Now(), summary: summary{Ready: err == nil, Reason: "everything of cnibox is removed from this node"}}
	if err != nil {
		s.Reason = err.Error()
	}
	a.reporter.current.Store(s)
	return s.Reason
}

// tryUninstall removes everything if no pod is attached. The network is removed first. If the runtime
// attached a pod meanwhile, the network is placed again.
func (a *agent) tryUninstall(ctx context.Context) error {
	if err := noneAttached(ctx, a.host); err != nil {
		return err
	}
	if err := a.reporter.install.removeNetwork(); err != nil {
		return err
	}
	if err := noneAttached(ctx, a.host); err != nil {
		a.reporter.install.hasPlugins = true
		return errors.Join(err, a.reporter.install.place(a.reporter.logChange))
	}
	if r := &a.set.registry; r.kube || r.dir != "" || len(r.etcd.Endpoints) > 0 {
		// A record of another machine with this node's name stays.
		if _, err := a.set.release(ctx, a.host); err != nil && !errors.Is(err, cluster.ErrConflict) {
			return fmt.Errorf("withdraw this node's record: %w", err)
		}
	}
	if err := a.set.clean(ctx, a.host, (*overlay.Kernel).Remove); err != nil {
		return err
	}
	if err := control.Stop(ctx, a.host); err != nil {
		return fmt.Errorf("end the enforcement of network policies: %w", err)
	}
	if _, err := recovery.RemoveNode(ctx, a.host); err != nil {
		return err
	}
	if err := os.Remove(a.host.Store.AgentSocket() + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return a.reporter.install.removePlugins(a.reporter.logChange)
}

// noneAttached returns errAttached with the pods that are attached. Those of other programs' plugins, such as flannel's before
// a migration, count while a guard refuses their unencrypted packets.
func noneAttached(ctx context.Context, h *roles.Host) error {
	if _, err := attachment.Reap(ctx, h, ""); err != nil {
		return err
	}
	all, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	if err != nil {
		return err
	}
	if len(all) > 0 {
		name := all[0].Pod
		if name == "" {
			name = all[0].ContainerID
		}
		return fmt.Errorf("%w: %d by cnibox, for example %s", errAttached, len(all), name)
	}
	for _, v6 := range []bool{false, true} {
		err := withOverlay(ctx, h.Net, v6, func(o *overlay.Kernel, ctx context.Context) error {
			link, err := o.PodLink(ctx)
			if link != "" {
				err = fmt.Errorf("%w: another program's, over link %q", errAttached, link)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
