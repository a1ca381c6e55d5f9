package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/cnibox/cnibox/store/cluster"
)

// Follow reads all objects of a collection, and then every change until ctx ends. While one is
// invalid, it reports that with Failed, the object stays as it was, and the first Complete waits: an object that
// cannot be read may hold what another one must not get.
func Follow[T any](ctx context.Context, c *Client, plural string, to cluster.Follower[*T]) error {
	return c.collection(plural).Watch(ctx, &follow[T]{to: to, what: path.Base(plural), known: map[string]string{}, faults: map[string]error{}, listed: map[string]item[T]{}})
}

// follow is a run of Follow. It is the Follower of the texts.
type follow[T any] struct {
	to   cluster.Follower[*T]
	what string
	// known has the version of each object as it was reported, and faults why others cannot be read.
	known  map[string]string
	faults map[string]error
	// listed are the changed objects of a list by name. read is true after the first list, and complete after the first Complete.
	listed         map[string]item[T]
	read, complete bool
	failing        bool
}

// item is an object of a list.
type item[T any] struct {
	object  *T
	version string
}

// Put decodes a text. An object of a list waits for Complete.
func (f *follow[T]) Put(t cluster.Text, listing bool) {
	delete(f.faults, t.Name)
	delete(f.listed, t.Name)
	if t.Err == nil && f.known[t.Name] == t.Version {
		f.report(listing)
		return
	}
	is := new(T)
	err := t.Err
	if err == nil {
		var o object
		if o, err = parse(t.Name, t.Text, t.Version); err == nil {
			err = convert(o, is)
		}
	}
	switch {
	case err != nil:
		f.faults[t.Name] = err
	case listing:
		f.listed[t.Name] = item[T]{is, t.Version}
	default:
		f.put(t.Name, item[T]{is, t.Version})
	}
	f.report(listing)
}

func (f *follow[T]) put(name string, i item[T]) {
	f.known[name] = i.version
	f.to.Put(i.object, !f.complete)
}

// Remove removes a deleted object.
func (f *follow[T]) Remove(name string, listing bool) {
	delete(f.faults, name)
	delete(f.listed, name)
	if _, is := f.known[name]; is {
		delete(f.known, name)
		f.to.Remove(name, !f.complete)
	}
	f.report(listing)
}

// Complete reports a list, removed objects first: others may have what they had.
func (f *follow[T]) Complete(names map[string]bool) {
	maps.DeleteFunc(f.faults, func(name string, _ error) bool { return !names[name] })
	for name := range f.known {
		if !names[name] {
			delete(f.known, name)
			f.to.Remove(name, !f.complete)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.listed)) {
		if names[name] {
			f.put(name, f.listed[name])
		}
	}
	clear(f.listed)
	f.read = true
	f.report(false)
}

// Failed reports that the registry cannot be reached.
func (f *follow[T]) Failed(err error) {
	f.failing = true
	f.to.Failed(err)
}

// Recovered reports that the registry can be reached again.
func (f *follow[T]) Recovered() { f.report(false) }

// report reports the invalid objects, or that there is none any more.
func (f *follow[T]) report(listing bool) {
	if listing || !f.read {
		return
	}
	if len(f.faults) > 0 {
		f.Failed(fmt.Errorf("read %s: %w", f.what, f.fault()))
		return
	}
	if !f.complete {
		f.complete = true
		names := make(map[string]bool, len(f.known))
		for name := range f.known {
			names[name] = true
		}
		f.to.Complete(names)
	}
	if f.failing {
		f.failing = false
		f.to.Recovered()
	}
}

// maxFaults bounds the text of an error.
const maxFaults = 10

// fault returns the faults as an error.
func (f *follow[T]) fault() error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(f.faults)) {
		faults = append(faults, fmt.Errorf("%s: %w", name, f.faults[name]))
	}
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults], fmt.Errorf("and %d further objects", more))
	}
	return errors.Join(faults...)
}
