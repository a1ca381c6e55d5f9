package cluster

import "context"

// Collection is a set of small texts by name. For a name that does not meet CheckName, Read and Write return ErrInvalid.
type Collection interface {
	// List calls each with every text and its version. The text of one that cannot be read is nil.
	List(ctx context.Context, each func(name string, text []byte, version string)) error
	// Read returns a text and its version, which is "" if there is no text.
	Read(ctx context.Context, name string) (text []byte, version string, err error)
	// Write creates or replaces a text, or deletes it if text is nil, and returns the new version. If the
	// version is not the given one any more, it writes nothing and returns ErrRaced. After another error it may
	// have written. Kubernetes does not delete: its nodes have no permission for that, and the error is
	// errors.ErrUnsupported.
	Write(ctx context.Context, name string, text []byte, version string) (next string, err error)
}

// Watched is a Collection whose changes can be followed. etcd and directories implement it. Kubernetes does not: nothing
// follows its pages, so agents need no right to watch ConfigMaps. Its objects are followed by rest.Follow.
type Watched interface {
	Collection
	// Watch reads all texts and then every change until ctx ends, and returns ctx's error. It retries after errors, and
	// reads everything again if changes may have been missed.
	Watch(ctx context.Context, to Follower[Text]) error
}

// Text is a text of a collection as a watch reads it. If it cannot be read, Err is the reason.
type Text struct {
	Name, Version string
	Text          []byte
	Err           error
}

// Follower has a copy of the items of a collection. One method is called at a time.
type Follower[P any] interface {
	// Put stores an item. It may be called again with the same one. While all items are read, listing is true, and
	// Complete follows.
	Put(o P, listing bool)
	// Remove removes an item that was deleted.
	Remove(name string, listing bool)
	// Complete is called after all items were read. Others than names do not exist. The map may change after the call.
	Complete(names map[string]bool)
	// Failed reports that the registry cannot be reached, and Recovered that it can be reached again
	// and nothing was missed. Complete means the same.
	Failed(err error)
	Recovered()
}
