package dir

import (
	"context"

	"github.com/cnibox/cnibox/store/cluster"
)

// Watch reports the content of the files. It returns ctx's error.
func (r *Registry) Watch(ctx context.Context, to *cluster.Relay) error {
	v := &view{View: cluster.View{Relay: to, Config: configKey, Warn: r.o.Warn}, r: r}
	v.watch = &watch{r: r, to: v, dir: nodesDir, limit: maxRecord, config: true}
	return v.watch.run(ctx)
}

// view is the table of one Watch.
type view struct {
	cluster.View
	r     *Registry
	watch *watch
}

func (v *view) make() error { return v.r.makeNodes() }

// list reads the configuration, and lists the records. If the configuration has changed, every record is checked again. Without a valid
// configuration there are none.
func (v *view) list(context.Context) ([]string, error) {
	changed := v.Configure(v.r.config())
	none := v.Table.Config() == nil
	if changed || none {
		v.watch.seen = nil
	}
	if none {
		return nil, nil
	}
	entries, err := v.r.list(nodesDir)
	if err != nil {
		return nil, err
	}
	return namesOf(entries), nil
}

// Put stores a record. One that the file system does not read stays as it was.
func (v *view) Put(f file, listing bool) {
	rec := record{err: f.err}
	if f.err == nil {
		rec = decode(f.name, f.text)
	}
	if unread(rec.err) == nil || !v.Table.Has(f.name) {
		v.PutRecord(f.name, rec.node, rec.err, listing)
	}
}

// Complete removes the other records.
func (v *view) Complete(names map[string]bool) {
	names[configKey] = true
	v.Table.Keep(names)
	v.Recovered()
}
