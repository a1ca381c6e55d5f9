package cloudsim

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fault is one way in which the cloud is not what it should be, as long as it is
// not healed.
type fault struct {
	kind *kind
	// name is the kind's, or for answers with an HTTP status that.
	name   string
	status int
	// left is how many requests it is for; less than 0 is without a limit.
	left int
	// path is what is in the path of the requests that it is for.
	path       string
	delay      time.Duration
	retryAfter string
	to         string
	// serial is the number of the request that it is met by.
	serial uint64
}

// kind is what may be wrong, and the place where it is made wrong: one of the
// functions.
type kind struct {
	name, help string
	// see changes what the cloud knows.
	see func(v *view)
	// say changes an answer.
	say func(f *fault, r *reply)
	// send sends an answer in its own way; an error ends the connection.
	send func(s *sending) error
	// early: before anything is answered, and instead of it.
	early bool
}

// maxDelay bounds what --delay says.
const maxDelay = time.Hour

// defaultDelay is of the slow kinds.
const defaultDelay = 3 * time.Second

// kinds are all, by what they touch. An HTTP status is a kind too.
func kinds() []*kind {
	return slices.Concat(viewKinds(), answerKinds(), wireKinds())
}

// refuse is the kind that no request comes to see.
const refuse = "refuse"

// newFault reads what is to be broken, and how.
func newFault(name string, flags map[string]string) (*fault, error) {
	f := &fault{name: name, left: -1, path: flags["path"], retryAfter: flags["retry-after"], to: flags["to"], delay: defaultDelay}
	all := kinds()
	if at := slices.IndexFunc(all, func(k *kind) bool { return k.name == name }); at >= 0 {
		f.kind = all[at]
	} else if n, err := strconv.Atoi(name); err == nil && n >= 400 && n < 600 {
		f.kind, f.status = &kind{name: name, say: sayStatus}, n
	} else {
		names := make([]string, len(all))
		for i, k := range all {
			names[i] = k.name
		}
		return nil, fmt.Errorf("%.40q is no fault: use an HTTP status from 400 on, %s", name, strings.Join(names, ", "))
	}
	if v := flags["count"]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--count: %.20q: use 1 or more", v)
		}
		f.left = n
	}
	if name == refuse && (f.left > 0 || f.path != "") {
		return nil, fmt.Errorf("--count, --path: no request is seen that is refused; use reset, or heal")
	}
	if v := flags["delay"]; v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > maxDelay {
			return nil, fmt.Errorf("--delay: %.20q: use a time from 0s to %s", v, maxDelay)
		}
		f.delay = d
	}
	return f, nil
}

// meets tells whether a fault is for a request.
func (f *fault) meets(r *http.Request) bool {
	return f.name != refuse && f.left != 0 && strings.Contains(r.URL.Path, f.path)
}

// answerKinds change what is said.
func answerKinds() []*kind {
	return []*kind{
		{name: "empty", help: "200 with no body", say: func(_ *fault, r *reply) { r.status, r.body = http.StatusOK, nil }},
		{name: "html", help: "200 with a page for people, as proxies and portals send it", say: func(_ *fault, r *reply) {
			*r = answer(http.StatusOK, typeHTML, "<!DOCTYPE html>\n<html><head><title>Service unavailable</title></head><body><p>Please try later.</body></html>\n")
		}},
		{name: "truncated", help: "half of the body, and nothing says so", say: func(_ *fault, r *reply) { r.body = r.body[:len(r.body)/2] }},
		{name: "redirect", help: "302 to another host, which --to names", say: func(f *fault, r *reply) {
			*r = answer(http.StatusFound, typeText, "").with("Location", cmp.Or(f.to, "http://192.0.2.1/"))
		}},
		{name: "large", help: "a body of 3 MiB", say: func(_ *fault, r *reply) { r.body = append(r.body, spaces(3<<20)...) }},
		{name: "gzip", help: "a compressed body that nobody asked for", say: sayGzip},
		{name: "etag", help: "another ETag with each answer", say: func(f *fault, r *reply) {
			r.header.Set("ETag", fmt.Sprintf("%016x", f.serial))
		}},
	}
}

// sayStatus answers with an HTTP status.
func sayStatus(f *fault, r *reply) {
	*r = page(f.status)
	if f.retryAfter != "" {
		r.header.Set("Retry-After", f.retryAfter)
	}
}
