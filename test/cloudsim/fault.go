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

// fault is an active fault of the cloud.
type fault struct {
	kind *kind
	// name is the kind's; for an HTTP status it is the status.
	name   string
	status int
	// left is the number of further requests that it applies to. A negative number is unlimited.
	left int
	// path selects requests whose paths contain it.
	path       string
	delay      time.Duration
	retryAfter string
	to         string
	// serial is the number of the request that it applies to.
	serial uint64
}

// kind is a kind of fault. One of its functions is set.
type kind struct {
	name, help string
	// see changes the node's data before the provider writes the answer.
	see func(v *view)
	// say changes an answer before it is sent.
	say func(f *fault, r *reply)
	// send sends an answer in a faulty way; an error ends the connection.
	send func(s *sending) error
	// early means that send runs in place of an answer.
	early bool
}

// maxDelay bounds --delay.
const maxDelay = time.Hour

// defaultDelay is the --delay of the slow kinds.
const defaultDelay = 3 * time.Second

// kinds returns all kinds except the HTTP statuses, which are kinds too.
func kinds() []*kind {
	return slices.Concat(viewKinds(), answerKinds(), wireKinds())
}

// refuse is the kind that closes the listeners, so that no request arrives.
const refuse = "refuse"

// newFault makes a fault from its name and flags.
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
		return nil, fmt.Errorf("%.40q is not a fault: use an HTTP status from 400 on, %s", name, strings.Join(names, ", "))
	}
	if v := flags["count"]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--count: %.20q: use 1 or more", v)
		}
		f.left = n
	}
	if name == refuse && (f.left > 0 || f.path != "") {
		return nil, fmt.Errorf("--count, --path: refused requests are not seen; use reset, or heal")
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

// applies reports whether a fault applies to a request.
func (f *fault) applies(r *http.Request) bool {
	return f.name != refuse && f.left != 0 && strings.Contains(r.URL.Path, f.path)
}

// answerKinds change the content of answers.
func answerKinds() []*kind {
	return []*kind{
		{name: "empty", help: "200 with no body", say: func(_ *fault, r *reply) { r.status, r.body = http.StatusOK, nil }},
		{name: "html", help: "200 with a page for people, as proxies and portals send it", say: func(_ *fault, r *reply) {
			*r = answer(http.StatusOK, typeHTML, "<!DOCTYPE html>\n<html><head><title>Service unavailable</title></head><body><p>Please try later.</body></html>\n")
		}},
		{name: "truncated", help: "half of the body, with a matching length", say: func(_ *fault, r *reply) { r.body = r.body[:len(r.body)/2] }},
		{name: "redirect", help: "302 to another host, which --to names", say: func(f *fault, r *reply) {
			*r = answer(http.StatusFound, typeText, "").with("Location", cmp.Or(f.to, "http://192.0.2.1/"))
		}},
		{name: "large", help: "a body of 3 MiB", say: func(_ *fault, r *reply) { r.body = append(r.body, spaces(3<<20)...) }},
		{name: "gzip", help: "a compressed body that was not requested", say: sayGzip},
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
