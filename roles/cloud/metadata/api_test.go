package metadata

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

const goodXML = `<Interfaces><Interface MacAddress="000D3A51C490" IsPrimary="true"><IPSubnet Prefix="10.240.0.0/16"><IPAddress Address="10.240.0.35" IsPrimary="true"/><IPAddress Address="10.240.0.36" IsPrimary="false"/></IPSubnet></Interface></Interfaces>`

// fetch requests azure's metadata from a handler.
func fetch(t *testing.T, h http.HandlerFunc) (*Reply, error) {
	t.Helper()
	clustertest.Loopback(t)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return azure().Fetch(t.Context(), Query{URL: srv.URL})
}

// Faulty replies of metadata services, and of proxies between node and service, from users'
// reports.
func TestFaults(t *testing.T) {
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	body := func(contentType, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write([]byte(text))
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    error
		after   time.Duration
	}{
		"good":               {body("text/xml", goodXML), nil, 0},
		"byte order mark":    {body("text/xml", "\ufeff"+goodXML), nil, 0},
		"401":                {status(401), ErrRefused, 0},
		"403":                {status(403), ErrRefused, 0},
		"404":                {status(404), ErrUnavailable, 0},
		"410":                {status(410), ErrUnavailable, 0},
		"429":                {status(429), ErrUnavailable, 0},
		"429 with time":      {status(429, "Retry-After", "7"), ErrUnavailable, 7 * time.Second},
		"429 with much time": {status(429, "Retry-After", "86400"), ErrUnavailable, time.Minute},
		"500":                {status(500), ErrUnavailable, 0},
		"503 with time":      {status(503, "Retry-After", "3"), ErrUnavailable, 3 * time.Second},
		"204":                {status(204), ErrInvalid, 0},
		"400":                {status(400), ErrInvalid, 0},
		"empty":              {body("text/xml", ""), ErrInvalid, 0},
		"no interfaces":      {body("text/xml", "<Interfaces/>"), ErrNoAddresses, 0},
		"page":               {body("text/html; charset=utf-8", goodXML), ErrInvalid, 0},
		"page as XML":        {body("text/xml", "<html><body>Sign in</body></html>"), ErrInvalid, 0},
		"JSON":               {body("text/xml", `{"interface":[]}`), ErrInvalid, 0},
		"truncated":          {body("text/xml", goodXML[:100]), ErrInvalid, 0},
		"entities":           {body("text/xml", `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><Interfaces><Interface MacAddress="&b;"/></Interfaces>`), ErrInvalid, 0},
		"too large":          {body("text/xml", goodXML+strings.Repeat(" ", maxBody)), ErrInvalid, 0},
		"hung up": {func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, ErrUnavailable, 0},
		"cut short": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000")
			_, _ = w.Write([]byte(goodXML))
		}, ErrUnavailable, 0},
		"compressed": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write([]byte(goodXML))
			_ = z.Close()
		}, ErrInvalid, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := fetch(t, c.handler)
			if !errors.Is(err, c.want) || RetryAfter(err) != c.after {
				t.Errorf("%v, retry after %v", err, RetryAfter(err))
			}
			if name == "compressed" && !strings.Contains(err.Error(), "not requested") {
				t.Error(err)
			}
			if (err == nil || errors.Is(err, ErrNoAddresses)) != (reply != nil) {
				t.Errorf("reply %v with %v", reply, err)
			}
		})
	}
}

// The client follows no redirect, uses no proxy of the environment, and requests no
// compression.
func TestNoOtherServer(t *testing.T) {
	clustertest.Loopback(t)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another server got a request") }))
	defer other.Close()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, other.URL)
	}
	for _, code := range []int{301, 302, 303, 307, 308} {
		_, err := fetch(t, func(w http.ResponseWriter, r *http.Request) {
			if v := r.Header.Get("Accept-Encoding"); v != "" {
				t.Errorf("accepts %q", v)
			}
			http.Redirect(w, r, other.URL, code)
		})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "redirected") {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// The client stops waiting for a header or a body at the caller's deadline.
func TestSilence(t *testing.T) {
	clustertest.Loopback(t)
	for name, before := range map[string]func(http.ResponseWriter){
		"header": func(http.ResponseWriter) {},
		"body": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("<Interfaces>"))
			w.(http.Flusher).Flush()
		},
	} {
		done := make(chan struct{})
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			before(w)
			<-done
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := azure().Fetch(ctx, Query{URL: srv.URL}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, err := azure().Fetch(ctx, Query{URL: srv.URL}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
		close(done)
		srv.Close()
	}
}

// Without a deadline of the caller, the client's own time limit applies.
func TestSlowHeader(t *testing.T) {
	clustertest.Loopback(t)
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer srv.Close()
	defer close(done)
	if _, err := azure().Fetch(t.Context(), Query{URL: srv.URL, HeaderTimeout: 50 * time.Millisecond}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// After a base URL without a server or without the path, the next base URL is tried.
// After one that limits the rate of requests, no other is tried.
func TestBases(t *testing.T) {
	clustertest.Loopback(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	var asked atomic.Int32
	serve := func(code int) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(goodXML))
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	good, absent, busy := serve(200), serve(404), serve(429)
	for name, c := range map[string]struct {
		bases []string
		want  error
		asked int32
		told  []string
	}{
		"nobody":     {[]string{nobody, good}, nil, 1, nil},
		"absent":     {[]string{absent, good}, nil, 2, nil},
		"first":      {[]string{good, absent}, nil, 1, nil},
		"busy":       {[]string{busy, good}, ErrUnavailable, 1, []string{busy}},
		"all absent": {[]string{absent, nobody}, ErrUnavailable, 1, []string{absent, nobody}},
		"another's":  {[]string{nobody, serve(400)}, ErrInvalid, 1, []string{nobody, "400 Bad Request"}},
	} {
		asked.Store(0)
		p := overHTTP("azure", "", c.bases, func(ctx context.Context, a *api) ([]nic, error) {
			b, err := a.get(ctx, azurePath)
			if err != nil {
				return nil, err
			}
			return decodeAzure(b)
		})
		if _, err := p(t.Context(), Query{}); !errors.Is(err, c.want) || asked.Load() != c.asked {
			t.Errorf("%s: %d requests, %v", name, asked.Load(), err)
		} else if err != nil && slices.ContainsFunc(c.told, func(base string) bool { return !strings.Contains(err.Error(), base) }) {
			t.Errorf("%s: %v, want %q in it", name, err, c.told)
		}
	}
}

// A token that expires between two calls is requested again, once.
func TestTokenExpires(t *testing.T) {
	clustertest.Loopback(t)
	for _, always := range []bool{false, true} {
		var tokens, asked atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				fmt.Fprintf(w, "token%d", tokens.Add(1))
				return
			}
			n := asked.Add(1)
			if always || n == 3 {
				http.Error(w, "", http.StatusUnauthorized)
				return
			}
			tree := map[string]string{
				macsPath: "0a:1b:2c:3d:4e:01/", macsPath + "0a:1b:2c:3d:4e:01/local-ipv4s": "10.0.0.4\n10.0.0.5",
				macsPath + "0a:1b:2c:3d:4e:01/subnet-ipv4-cidr-block": "10.0.0.0/24",
			}
			v, ok := tree[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, v)
		}))
		_, err := aws().Fetch(t.Context(), Query{URL: srv.URL})
		if always && (!errors.Is(err, ErrRefused) || tokens.Load() != 2) || !always && (err != nil || tokens.Load() != 2) {
			t.Errorf("always %t: %d tokens, %v", always, tokens.Load(), err)
		}
		srv.Close()
	}
}

// A service on Google's address without Google's header is refused.
func TestGenuine(t *testing.T) {
	clustertest.Loopback(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[]") }))
	defer srv.Close()
	if _, err := gcp().Fetch(t.Context(), Query{URL: srv.URL}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "Metadata-Flavor") {
		t.Error(err)
	}
}

func TestCheckURL(t *testing.T) {
	for s, ok := range map[string]bool{
		"http://168.63.129.16": true, "http://[fd00:ec2::254]:8080/": true, "http://127.0.0.1:80/prefix": true, "https://metadata.example/": true,
		"": false, "168.63.129.16": false, "http://": false, "http://metadata.google.internal": false, "ftp://10.0.0.1": false,
		"http://u:p@10.0.0.1": false, "http://10.0.0.1/?a=b": false, "http://10.0.0.1/#x": false, "http://10.0.0.1\n": false, "file:///etc/passwd": false,
	} {
		if err := CheckURL(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := azure().Fetch(t.Context(), Query{URL: "http://name"}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// A file that other users can write is refused, because it decides about addresses. A
// symbolic link to another directory is not followed.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(goodXML), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, loose := write("good", 0o644), write("loose", 0o666)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte(goodXML), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(to, name string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	large := filepath.Join(dir, "large")
	if err := os.Truncate(write("large", 0o600), maxBody+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		good: nil, link("good", "near"): nil, loose: ErrRefused, link(outside, "far"): ErrUnavailable, large: ErrUnavailable,
		filepath.Join(dir, "none"): ErrUnavailable, filepath.Join(dir, "no", "dir"): ErrUnavailable, dir: ErrUnavailable, "good": ErrInvalid,
	} {
		if _, err := file().Fetch(t.Context(), Query{File: path}); !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// auto selects the provider by the machine's vendor, and reports the vendor if no
// provider matches.
func TestAuto(t *testing.T) {
	clustertest.Loopback(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/machine/"):
			http.Error(w, "", http.StatusServiceUnavailable)
		case r.Header.Get("Metadata") == "true":
			fmt.Fprint(w, `{"interface":[{"macAddress":"000D3A51C490","ipv4":{"ipAddress":[{"privateIpAddress":"10.0.0.4"},{"privateIpAddress":"10.0.0.5"}],"subnet":[{"address":"10.0.0.0","prefix":"24"}]}}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	for name, c := range map[string]struct {
		dmi      map[string]string
		names    []string
		provider string
		text     string
	}{
		"azure":      {map[string]string{"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": azureAsset}, []string{"azure", "azure-imds"}, "azure-imds", ""},
		"hyper-v":    {map[string]string{"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, nil, "", `sys_vendor "Microsoft Corporation"`},
		"aws":        {map[string]string{"sys_vendor": "Amazon EC2"}, []string{"aws"}, "", "aws: "},
		"gcp":        {map[string]string{"sys_vendor": "Google", "product_name": "Google Compute Engine"}, []string{"gcp"}, "", "gcp: "},
		"alibaba":    {map[string]string{"product_name": "Alibaba Cloud ECS"}, []string{"alibaba"}, "", "alibaba: "},
		"tencent":    {map[string]string{"sys_vendor": "Tencent Cloud", "product_name": "CVM"}, []string{"tencent"}, "", "tencent: "},
		"oracle":     {map[string]string{"sys_vendor": "QEMU", "chassis_asset_tag": "OracleCloud.com"}, []string{"oracle"}, "", "oracle: "},
		"openstack":  {map[string]string{"product_name": "OpenStack Nova"}, []string{"openstack"}, "", "openstack: "},
		"digital":    {map[string]string{"sys_vendor": "DigitalOcean"}, []string{"digitalocean"}, "", "digitalocean: "},
		"hetzner":    {map[string]string{"sys_vendor": "Hetzner"}, []string{"hetzner"}, "", "hetzner: "},
		"vultr":      {map[string]string{"sys_vendor": "Vultr"}, []string{"vultr"}, "", "vultr: "},
		"bare metal": {nil, nil, "", "sys_vendor nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for k, v := range c.dmi {
				if err := os.WriteFile(filepath.Join(dir, k), []byte(v+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if names, _ := detect(dir); strings.Join(names, " ") != strings.Join(c.names, " ") {
				t.Errorf("suggests %v", names)
			}
			reply, err := auto().Fetch(t.Context(), Query{URL: srv.URL, DMI: dir})
			switch {
			case c.provider != "" && (err != nil || reply.Provider != c.provider):
				t.Errorf("%v, %v", reply, err)
			case c.provider == "" && (err == nil || !strings.Contains(err.Error(), c.text)):
				t.Errorf("%v", err)
			case c.names == nil && !errors.Is(err, ErrNoAddresses):
				t.Errorf("%v", err)
			}
		})
	}
}
