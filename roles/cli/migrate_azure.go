package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

const (
	azureVNet     = "azure-vnet"
	azureVNetIPAM = "azure-vnet-ipam"
	// azureLockTimeout is longer than the 30 s for which azure-vnet waits for its lock.
	azureLockTimeout = 40 * time.Second
)

// lookAzure are the steps from azure-vnet. Its containers are taken over when its plugins are
// replaced, from its two state files.
func (m *migrator) lookAzure() ([]step, error) {
	found := false
	err := m.eachNetwork(func(file string, raw []byte) error {
		types := lint.Types(raw)
		if !slices.Contains(types, azureVNet) {
			return nil
		}
		found = true
		if !slices.Contains(types, azureVNetIPAM) {
			return fmt.Errorf("network %s: its ipam.type is not %s: cnibox does not get addresses from Azure's CNS", file, azureVNetIPAM)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("there is no azure-vnet on this node: no network in %s has the type %s", m.record.ConfDir, azureVNet)
	}
	state, err := azureview.ReadPluginState(m.c.Context, m.h)
	if err != nil {
		return nil, err
	}
	steps, err := m.pluginSteps()
	if err != nil || state == nil {
		return steps, err
	}
	s := &steps[0]
	install := s.do
	s.State, s.What = stepTodo, fmt.Sprintf("take over %s of azure-vnet, and %s", counted(len(state.Attached), "container"), s.What)
	s.do = func() error { return m.takeAzure(install) }
	return steps, nil
}

// takeAzure imports the containers of azure-vnet and replaces its plugins, while no azure-vnet
// attaches or detaches a container. Calls that wait for its lock would continue with the old
// program, so the lock is released after they gave up. Their runtime repeats them.
func (m *migrator) takeAzure(install func() error) error {
	ctx, cancel := context.WithTimeout(m.c.Context, azureLockTimeout)
	defer cancel()
	unlock, err := azureview.LockPlugin(ctx, m.h)
	if errors.Is(err, fs.ErrNotExist) {
		return advice.With(err, "update azure-vnet to v1.4.15 or newer, whose calls can be locked out")
	}
	if err != nil {
		return err
	}
	defer unlock()
	state, err := azureview.ReadPluginState(ctx, m.h)
	if err != nil {
		return err
	}
	if state != nil {
		err = state.Import(ctx, m.h)
	}
	if err == nil && install != nil {
		err = install()
	}
	if err == nil {
		err = awaitEnd(azureVNet, false, azureLockTimeout)
	}
	if err != nil {
		return err
	}
	return azureview.WriteAll(ctx, m.h)
}

// backAzure are the steps to azure-vnet. It detaches the containers that it attached by the
// state files, which cnibox kept up to date.
func (m *migrator) backAzure() ([]step, error) {
	imported, err := azureview.Imported(m.c.Context, m.h)
	if err != nil {
		return nil, err
	}
	s, err := m.restoreStep()
	if err != nil {
		return nil, err
	}
	restore := s.do
	if len(imported) > 0 {
		s.State, s.What = stepTodo, fmt.Sprintf("%s, and return %s to azure-vnet", s.What, counted(len(imported), "container"))
	}
	s.do = func() error { return m.returnAzure(restore) }
	return []step{s, m.drainStep()}, nil
}

// returnAzure restores azure-vnet's plugins and state files, and forgets its containers. A
// repeated call does not write the files again, because azure-vnet may have changed them.
func (m *migrator) returnAzure(restore func() error) error {
	ctx, cancel := context.WithTimeout(m.c.Context, azureLockTimeout)
	defer cancel()
	unlock, err := azureview.LockPlugin(ctx, m.h)
	switch {
	case err == nil:
		defer unlock()
	case !errors.Is(err, fs.ErrNotExist): // azure-vnet has not run since the boot
		return err
	}
	if restore != nil {
		if err := azureview.HandOver(ctx, m.h); err != nil {
			return err
		}
		if err := restore(); err != nil {
			return err
		}
	}
	// A call of cnibox that began before writes the files again. After Return it would write them without
	// the returned containers.
	for _, name := range []string{azureVNet, "chain"} {
		if err := awaitEnd(name, true, azureLockTimeout); err != nil {
			return err
		}
	}
	if restore != nil {
		if err := azureview.HandOver(ctx, m.h); err != nil {
			return err
		}
	}
	return azureview.Return(ctx, m.h)
}
