package cluster

import (
	"context"
	"errors"
	"net/netip"
	"strings"
)

// MaxPage bounds a page of a cluster-wide range in bytes.
const MaxPage = 256 << 10

// ErrRaced means that another node wrote first. The caller reads again.
var ErrRaced = errors.New("another node wrote first")

// Ranges is the part of a Registry for cluster-wide ranges. A page records which nodes have which
// addresses. A name of a page begins and ends with a letter or digit and has only lower case letters,
// digits and '-' between.
type Ranges interface {
	// Pages returns the collection of the pages. No page is deleted.
	Pages() Collection
	// Join records that this node exists, until it does not renew the record for long or an operator
	// deletes it. It may be repeated.
	Join(ctx context.Context) error
	// Gone reports whether a node has no record any more.
	Gone(ctx context.Context, node string) (bool, error)
	// ForeignRanges returns the ranges that another program gives addresses of. No page may be used for them.
	ForeignRanges(ctx context.Context) ([]ForeignRange, error)
}

// PageDeletions is the part of a Registry that knows which pages other programs delete.
type PageDeletions interface {
	// DeletedPages returns the pages that another program has deleted since the last call, "" for all of them. One goroutine
	// calls it.
	DeletedPages() (names []string)
}

// ForeignRange is a range that another program gives addresses of.
type ForeignRange struct {
	// Name is the name of the program's object.
	Name string
	// Range is the zero Prefix for an object without a valid range, which only Fault is about. Further entries have the
	// ranges that the object may be of.
	Range netip.Prefix
	// Fault is why the object's range cannot be read, or nil.
	Fault error
	// Returning means that the nodes must return their blocks of the range.
	Returning bool
}

// CutPageName returns the page of a key with a prefix, or false if it is not the key of a page.
func CutPageName(prefix, key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, prefix)
	return name, ok && CheckName(name) == nil
}
