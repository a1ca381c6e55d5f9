package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Object has the fields that begin every object of the API. Kinds embed it and add
// the fields that they need. Code, Reason and Message are fields of a Status, which
// replaces an object in the stream of a watch.
type Object struct {
	Metadata Metadata `json:"metadata" protobuf:"1"`
	Code     int      `json:"code"`
	Reason   string   `json:"reason"`
	Message  string   `json:"message"`
}

// Metadata has the fields of metav1.ObjectMeta that are used here.
type Metadata struct {
	Name            string            `json:"name"            protobuf:"1"`
	Namespace       string            `json:"namespace"       protobuf:"3"`
	UID             string            `json:"uid"             protobuf:"5"`
	ResourceVersion string            `json:"resourceVersion" protobuf:"6"`
	Annotations     map[string]string `json:"annotations"     protobuf:"12"`
	// Labels and Finalizers are not read from protobuf.
	Labels     map[string]string `json:"labels"`
	Finalizers []string          `json:"finalizers"`
	// DeletionTimestamp is not empty if the object is being deleted.
	DeletionTimestamp string `json:"deletionTimestamp" protobuf:"9,time"`
}

// Key returns "namespace/name", or the name of an object without a namespace.
func (m *Metadata) Key() string {
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}

// Meta returns the metadata.
func (o *Object) Meta() *Metadata { return &o.Metadata }

func (o *Object) object() *Object { return o }

// Kind is a pointer to a struct that embeds Object.
type Kind interface {
	Meta() *Metadata
	object() *Object
}

// empty returns a new object. reflect makes it, so that the functions of this package have one instance for all kinds.
func empty[P Kind]() P {
	return reflect.New(reflect.TypeFor[P]().Elem()).Interface().(P) //nolint:forcetypeassert // it has that type
}

const (
	// page is the number of objects in one reply of a list. It bounds the server's
	// memory.
	page = 1000
	// maxObjects bounds a list. It is a hundred times the size of the largest clusters.
	maxObjects = 1_000_000
)

// errNoObject means that an event of a watch has no object.
var errNoObject = errors.New("event without an object")

// errEndless means that a list has more than maxObjects objects.
var errEndless = fmt.Errorf("%w: the list has no end", cluster.ErrUnavailable)

// List calls each with the objects of a collection, one after the other, and returns the version from
// which to watch. After an error the objects are incomplete.
func List[P Kind](ctx context.Context, c *Client, path string, each func(P)) (version string, err error) {
	return ListWhere(ctx, c, path, nil, each)
}

// ListWhere is List of the objects that the parameters fieldSelector and labelSelector select.
func ListWhere[P Kind](ctx context.Context, c *Client, path string, where url.Values, each func(P)) (version string, err error) {
	count, next := 0, ""
	for {
		query := url.Values{"limit": {strconv.Itoa(page)}}
		maps.Copy(query, where)
		if next != "" {
			query.Set("continue", next)
		}
		r := request{method: http.MethodGet, path: path, query: query}
		if canProtobuf[P]() {
			r.accept = protobufList
		}
		resp, err := c.do(ctx, &r)
		if err != nil {
			return "", err
		}
		before, read := count, readList[P]
		if isProtobuf(resp) {
			read = readProtobufList[P]
		}
		meta, err := read(ctx, resp, func(o P) bool { count++; each(o); return count <= maxObjects })
		web.Discard(resp.Body)
		if err != nil {
			return "", err
		}
		if count == before && meta.Continue != "" {
			return "", errEndless
		}
		if meta.Continue == "" {
			if meta.ResourceVersion == "" {
				return "", fmt.Errorf("%w: API server: list without resourceVersion", cluster.ErrUnavailable)
			}
			return meta.ResourceVersion, nil
		}
		next = meta.Continue
	}
}

// listMeta is metav1.ListMeta.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion" protobuf:"2"`
	Continue        string `json:"continue"        protobuf:"3"`
}

// readList reads a list's JSON, one object at a time, until each returns false.
func readList[P Kind](ctx context.Context, resp *http.Response, each func(P) bool) (meta listMeta, err error) {
	s := web.NewStream(resp.Body, maxObject)
	err = s.Each('{', func() error {
		switch name, err := s.Token(); {
		case err != nil:
			return err
		case name == "metadata":
			return s.Decode(&meta)
		case name == "items":
			return s.Each('[', func() error {
				o := empty[P]()
				if err := s.Decode(o); err != nil {
					return err
				}
				if !each(o) {
					return errEndless
				}
				return nil
			})
		}
		return s.Decode(new(json.RawMessage))
	})
	if err != nil {
		return listMeta{}, lost(ctx, "list", whole(err))
	}
	return meta, nil
}

// lost returns the error of a stream, which is cluster.ErrUnavailable also if its text cannot be decoded.
func lost(ctx context.Context, what string, err error) error {
	return web.Lost(ctx, fmt.Errorf("API server: %s: %w", what, err))
}

// Event is a change of an object in a watched collection. Type is ADDED, MODIFIED, DELETED or BOOKMARK.
// A bookmark has only a version, and Initial after the last existing object was sent. The first event
// is Opened and has no object.
type Event[P Kind] struct {
	Type    string
	Object  P
	Initial bool
}

// Opened is the type of the first event, after the server has accepted the watch.
const Opened = "OPENED"

// Since is the start of a watch.
type Since struct {
	// Version is the version of a list or of the last event.
	Version string
	// All requests all existing objects first, and a bookmark after them (a streaming
	// list,
	// https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists).
	// For a server without that the error is cluster.ErrInvalid, of Watch or of the stream.
	All bool
	// Where has the parameters fieldSelector and labelSelector, if not all objects are watched.
	Where url.Values
}

// Bounds of the duration of one watch. The server ends it in that time, and the next one continues
// from its last version.
const (
	watchShort, watchLong = 5 * time.Minute, 10 * time.Minute
	watchGrace            = 30 * time.Second
)

// Watch calls each with the changes of a collection's objects. It returns nil when the server ends the
// stream, and an error if the server refuses to continue or does not answer.
func Watch[P Kind](ctx context.Context, c *Client, path string, since Since, each func(Event[P])) error {
	lasts := watchShort + rand.N(watchLong-watchShort)
	// A stopped server does not end its streams.
	ctx, cancel := context.WithTimeout(ctx, lasts+watchGrace)
	defer cancel()
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(lasts / time.Second))}}
	maps.Copy(query, since.Where)
	if since.All {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		query.Set("resourceVersion", since.Version)
	}
	r := request{method: http.MethodGet, path: path, query: query}
	if canProtobuf[P]() {
		r.accept = protobufWatch
	}
	resp, err := c.do(ctx, &r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	each(Event[P]{Type: Opened})
	next := jsonEvents[P](resp.Body)
	if isProtobuf(resp) {
		next = protobufEvents[P](resp.Body)
	}
	for {
		kind, object, err := next()
		var status *StatusError
		switch {
		case errors.Is(err, io.EOF) && ctx.Err() == nil:
			// A server that notices the closed connection ends the stream normally.
			return nil
		case errors.As(err, &status):
			return status
		case err != nil:
			return lost(ctx, "watch", err)
		}
		switch kind {
		case "ADDED", "MODIFIED", "DELETED", "BOOKMARK":
			each(Event[P]{Type: kind, Object: object, Initial: kind == "BOOKMARK" && object.object().Metadata.Annotations["k8s.io/initial-events-end"] == "true"})
		}
	}
}

// jsonEvents reads the events of a JSON watch.
func jsonEvents[P Kind](r io.Reader) func() (string, P, error) {
	s := web.NewStream(r, maxObject)
	return func() (kind string, object P, err error) {
		var e struct {
			Type   string `json:"type"`
			Object P      `json:"object"`
		}
		if err := s.Decode(&e); err != nil {
			return "", object, err
		}
		if reflect.ValueOf(e.Object).IsNil() {
			return "", object, errNoObject
		}
		if o := e.Object.object(); e.Type == "ERROR" {
			return "", object, &StatusError{Code: o.Code, Reason: o.Reason, Message: o.Message}
		}
		return e.Type, e.Object, nil
	}
}
