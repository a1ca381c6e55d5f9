package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Object is what every object of the API begins with. Kinds embed it and add the
// fields that they need. Code, Reason and Message are those of a Status, which
// takes an object's place in the stream of a watch.
type Object struct {
	Metadata Metadata `json:"metadata"`
	Code     int      `json:"code"`
	Reason   string   `json:"reason"`
	Message  string   `json:"message"`
}

// Metadata is metav1.ObjectMeta, as far as it matters here.
type Metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Annotations     map[string]string `json:"annotations"`
}

func (o *Object) object() *Object { return o }

// Kind is a type that embeds Object.
type Kind[T any] interface {
	*T
	object() *Object
}

const (
	// page is how many objects a list asks for at once: the server's memory, not
	// ours, is bounded by it.
	page = 1000
	// maxObjects ends a list that goes on for ever; the largest clusters have a
	// hundredth of it.
	maxObjects = 1_000_000
)

// errEndless is a list without an end.
var errEndless = fmt.Errorf("%w: API server: list goes on for ever", cluster.ErrUnavailable)

// List calls each with the objects of a collection, one after the other: what
// each does not keep is not kept. It returns the version to watch from. The
// objects are complete when it returns nil only.
func List[T any, P Kind[T]](ctx context.Context, c *Client, path string, each func(P)) (version string, err error) {
	count, next := 0, ""
	for {
		query := url.Values{"limit": {strconv.Itoa(page)}}
		if next != "" {
			query.Set("continue", next)
		}
		resp, err := c.do(ctx, &request{method: http.MethodGet, path: path, query: query})
		if err != nil {
			return "", err
		}
		var meta listMeta
		n := 0
		meta, err = readList(ctx, resp, func(o P) { n++; each(o) })
		web.Discard(resp.Body)
		if err != nil {
			return "", err
		}
		if count += n; count > maxObjects || n == 0 && meta.Continue != "" {
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
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// readList walks through a list's JSON, an object at a time.
func readList[T any, P Kind[T]](ctx context.Context, resp *http.Response, each func(P)) (meta listMeta, err error) {
	s := web.NewStream(resp.Body, maxObject)
	fail := func(err error) (listMeta, error) {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, errShape) || errors.Is(err, web.ErrTooLarge) {
			return listMeta{}, fmt.Errorf("%w: API server: list: %w", cluster.ErrUnavailable, err)
		}
		return listMeta{}, web.Lost(ctx, err)
	}
	if err := expect(s, json.Delim('{')); err != nil {
		return fail(err)
	}
	for s.More() {
		key, err := s.Token()
		if err != nil {
			return fail(err)
		}
		switch key {
		case "metadata":
			err = s.Decode(&meta)
		case "items":
			err = readItems(s, each)
		default:
			var skipped json.RawMessage
			err = s.Decode(&skipped)
		}
		if err != nil {
			return fail(err)
		}
	}
	if err := expect(s, json.Delim('}')); err != nil {
		return fail(err)
	}
	return meta, nil
}

// readItems walks through the items; null is none.
func readItems[T any, P Kind[T]](s *web.Stream, each func(P)) error {
	open, err := s.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('[') {
		return fmt.Errorf("%w: items are no array", errShape)
	}
	for s.More() {
		o := P(new(T))
		if err := s.Decode(o); err != nil {
			return err
		}
		each(o)
	}
	return expect(s, json.Delim(']'))
}

var errShape = errors.New("not a list")

func expect(s *web.Stream, want json.Delim) error {
	got, err := s.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%w: want %v", errShape, want)
	}
	return err
}

// Event is what happened to an object of a watched collection: Type is ADDED,
// MODIFIED, DELETED or BOOKMARK. Of a bookmark only the version counts, and
// Initial, which tells that all the objects that there were have been sent. The
// first event is Opened and has no object.
type Event[T any] struct {
	Type    string
	Object  *T
	Initial bool
}

// Opened is the Event that the server has taken the watch.
const Opened = "OPENED"

// Since says from where a watch starts.
type Since struct {
	// Version is the one of a list or of the last event.
	Version string
	// All asks for all the objects that there are first, and a bookmark after
	// them (a streaming list, https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists).
	// Servers without it answer with cluster.ErrInvalid, some inside the stream.
	All bool
}

// Watching bounds how long one watch lasts: the server ends it in that time, and
// the next goes on from its last version.
const (
	watchShort, watchLong = 5 * time.Minute, 10 * time.Minute
	watchGrace            = 30 * time.Second
)

// Watch calls each with what happens to a collection's objects, until the server
// ends the stream (nil), or refuses to go on, or is gone.
func Watch[T any, P Kind[T]](ctx context.Context, c *Client, path string, since Since, each func(Event[T])) error {
	lasts := watchShort + rand.N(watchLong-watchShort)
	// A server that stops in the middle does not end its streams.
	ctx, cancel := context.WithTimeout(ctx, lasts+watchGrace)
	defer cancel()
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(lasts / time.Second))}}
	if since.All {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		query.Set("resourceVersion", since.Version)
	}
	resp, err := c.do(ctx, &request{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	each(Event[T]{Type: Opened})
	s := web.NewStream(resp.Body, maxObject)
	for {
		var e struct {
			Type   string `json:"type"`
			Object *T     `json:"object"`
		}
		switch err := s.Decode(&e); {
		case drained(err):
			return nil
		case err != nil:
			return web.Lost(ctx, fmt.Errorf("API server: watch: %w", err))
		case e.Object == nil:
			return fmt.Errorf("%w: API server: watch: event without an object", cluster.ErrUnavailable)
		}
		o := P(e.Object).object()
		switch e.Type {
		case "ERROR":
			return &StatusError{Code: o.Code, Reason: o.Reason, Message: o.Message}
		case "ADDED", "MODIFIED", "DELETED", "BOOKMARK":
			each(Event[T]{Type: e.Type, Object: e.Object, Initial: e.Type == "BOOKMARK" && o.Metadata.Annotations["k8s.io/initial-events-end"] == "true"})
		}
	}
}
