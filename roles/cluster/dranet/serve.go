package dranet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

const (
	// maxRequest bounds a request in bytes. It has the whole network configuration of a device.
	maxRequest = 1 << 20
	// maxAddresses bounds the addresses of a request.
	maxAddresses = 64
	// maxError bounds an error in an answer in characters.
	maxError = 2000
	// maxUID and maxDevice bound names. Those of Kubernetes are shorter.
	maxUID, maxDevice = 128, 253
	// answerTime bounds a call. DraNet waits for 10 s.
	answerTime = 9 * time.Second
)

// errRequest means that a request is malformed.
var errRequest = errors.New("malformed request")

// call is the body of DraNet's requests. It has further members, which have no effect here.
type call struct {
	Device struct {
		Name string `json:"name"`
	} `json:"device"`
	ClaimUID string        `json:"claim_uid"`
	Config   networkConfig `json:"config"`
	// addresses are those of Config without the prefix lengths.
	addresses []netip.Addr
}

// networkConfig has the members of DraNet's NetworkConfig that a profile is given by, and that it gives.
type networkConfig struct {
	Profile   string  `json:"profile,omitempty"`
	Interface iface   `json:"interface"`
	Routes    []route `json:"routes,omitempty"`
}

type iface struct {
	Addresses []string `json:"addresses,omitempty"`
}

type route struct {
	Destination string `json:"destination,omitempty"`
	Gateway     string `json:"gateway,omitempty"`
	Scope       int    `json:"scope,omitempty"`
	Table       int    `json:"table,omitempty"`
}

// capabilities are what DraNet asks for once, when it starts.
type capabilities struct {
	CloudProvider   bool `json:"cloudProvider"`
	ProfileProvider bool `json:"profileProvider"`
}

// handler answers DraNet.
func (p *provider) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(capabilities{ProfileProvider: true})
		p.answer(w, body, err)
	})
	mux.HandleFunc("POST /GetProfileConfig", p.serve(func(ctx context.Context, c *call) ([]byte, error) {
		if c.Config.Profile == "" {
			return nil, fmt.Errorf("%w: config.profile is missing", errRequest)
		}
		conf, err := p.give(ctx, c)
		if err != nil {
			return nil, err
		}
		return json.Marshal(conf)
	}))
	mux.HandleFunc("POST /ReleaseProfileConfig", p.serve(func(ctx context.Context, c *call) ([]byte, error) {
		_, err := release(ctx, p.host, c.ClaimUID, c.Device.Name) // the profile need not exist any more
		return []byte("{}"), err
	}))
	return mux
}

// serve returns the handler of a method.
func (p *provider) serve(method func(context.Context, *call) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		var body []byte
		c, err := readCall(http.MaxBytesReader(w, r.Body, maxRequest))
		if err == nil {
			body, err = method(ctx, c)
		}
		p.answer(w, body, err)
	}
}

// readCall reads and checks a request.
func readCall(body io.Reader) (*call, error) {
	raw, err := io.ReadAll(body)
	c := &call{}
	if err == nil {
		err = json.Unmarshal(raw, c)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRequest, err)
	}
	if len(c.ClaimUID) > maxUID || !roles.IsName(c.ClaimUID) {
		return nil, fmt.Errorf("%w: claim_uid: %.140q is not the UID of a ResourceClaim", errRequest, c.ClaimUID)
	}
	if len(c.Device.Name) > maxDevice || !roles.IsName(c.Device.Name) {
		return nil, fmt.Errorf("%w: device.name: %.260q is not the name of a device", errRequest, c.Device.Name)
	}
	if n := len(c.Config.Interface.Addresses); n > maxAddresses {
		return nil, fmt.Errorf("%w: config.interface.addresses: %d addresses: give %d at most", errRequest, n, maxAddresses)
	}
	for i, text := range c.Config.Interface.Addresses {
		a, err := roles.ParseAddrOrCIDR(text)
		if err != nil {
			return nil, fmt.Errorf("%w: config.interface.addresses[%d]: %w", errRequest, i, err)
		}
		c.addresses = append(c.addresses, a)
	}
	return c, nil
}

// status returns the status of an answer. The kubelet repeats its call after each error.
func status(err error) int {
	switch {
	case errors.Is(err, errRequest):
		return http.StatusBadRequest
	case errors.Is(err, errNoProfile):
		return http.StatusNotFound
	case errors.Is(err, store.ErrTaken):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// answer answers with JSON or with an error, which DraNet logs and the kubelet shows in an event of the pod.
func (p *provider) answer(w http.ResponseWriter, body []byte, err error) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if err != nil {
		p.host.Log.Warn("refused a call of DraNet", "error", err)
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status(err))
		_, _ = fmt.Fprintln(w, strings.ToValidUTF8(fmt.Sprintf("%.*s", maxError, err), ""))
		return
	}
	h.Set("Content-Type", "application/json")
	if _, err := w.Write(append(body, '\n')); err != nil {
		p.host.Log.Debug("DraNet closed the connection before the answer", "error", err)
	}
}
