package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/kubetest"
)

// atOnce is the number of simultaneous requests.
const atOnce = 8

// kubeServer is a kube-apiserver with Node objects.
type kubeServer struct {
	*kubetest.Server
	client *http.Client
	// ballast is the status that kubelet reports: most of the object.
	ballast string
}

// onKube measures an agent on a kube-apiserver.
func onKube(ctx context.Context, o options, dir string) (l live, f fleet, err error) {
	s, err := kubetest.Start(kubetest.CurrentEtcd)
	if err != nil {
		return l, f, err
	}
	defer s.Stop()
	k := &kubeServer{Server: s, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: atOnce,
	}}}
	var images []string
	for i := range 20 {
		images = append(images, fmt.Sprintf(`{"names":["registry.example.com/library/image-%d@sha256:%064d","registry.example.com/library/image-%d:v1"],"sizeBytes":%d}`, i, i, i, 1000000+i))
	}
	k.ballast = strings.Join(images, ",")
	note("%d nodes on a kube-apiserver", o.peers)
	if err := k.create(ctx, `{"metadata":{"name":"self"},"spec":{"podCIDR":"10.0.1.0/24","podCIDRs":["10.0.1.0/24"]}}`); err != nil {
		return l, f, err
	}
	if err := k.each(o.peers, func(i int) error { return k.create(ctx, k.node(i)) }); err != nil {
		return l, f, err
	}
	const network = `{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`
	conf := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(conf, []byte(network), 0o600); err != nil {
		return l, f, err
	}
	access := func(address string) (string, error) {
		file := filepath.Join(dir, "kubeconfig-"+address)
		return file, os.WriteFile(file, []byte(k.kubeconfig(address)), 0o600)
	}
	kubeconfig, err := access(k.Address)
	if err != nil {
		return l, f, err
	}
	a := &agent{binary: o.cnibox, dir: dir, peers: o.peers, flags: []string{"-kube-subnet-mgr", "-kubeconfig-file", kubeconfig, "-net-config-path", conf}}
	before, err := k.requests(ctx)
	if err != nil {
		return l, f, err
	}
	// The first start is that of a node that joins. A watch is counted when it ends.
	if _, err := a.startTimes(ctx, 1); err != nil {
		return l, f, err
	}
	after, err := k.requests(ctx)
	if err != nil {
		return l, f, err
	}
	start, err := a.startTimes(ctx, 3)
	if err != nil {
		return l, f, err
	}
	l, err = a.live(ctx, k)
	if err != nil {
		return l, f, err
	}
	l.start = start
	config, _, err := cluster.ParseConfig([]byte(network))
	if err != nil {
		return l, f, err
	}
	note("%d agents", followers)
	f, err = k.measureFleet(ctx, config, access, o.peers)
	f.requests = after - before
	return l, f, err
}

// node returns the k-th Node, as large as real ones.
func (k *kubeServer) node(i int) string {
	p := peer(i)
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kubernetes.io/arch":"amd64","kubernetes.io/hostname":%q,"kubernetes.io/os":"linux"},"annotations":{%s,`+
		`"flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"%s"}},`+
		`"spec":{"podCIDR":"%s","podCIDRs":["%s"]},"status":{"images":[%s]}}`, p.Name, p.Name, backendData(0, i), p.Gateway, p.Subnet, p.Subnet, k.ballast)
}

func backendData(generation, i int) string {
	return fmt.Sprintf(`"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"%s\"}"`, mac(generation, i))
}

func (k *kubeServer) create(ctx context.Context, node string) error {
	return k.request(ctx, http.MethodPost, "/api/v1/nodes", "application/json", node)
}

// change patches annotations, as flanneld does.
func (k *kubeServer) change(ctx context.Context, generation, n int) error {
	return k.each(n, func(i int) error {
		return k.request(ctx, http.MethodPatch, "/api/v1/nodes/"+peer(i).Name+"/status", "application/merge-patch+json", `{"metadata":{"annotations":{`+backendData(generation, i)+`}}}`)
	})
}

// each calls do for 0 to n-1, several at a time.
func (k *kubeServer) each(n int, do func(int) error) error {
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for w := range atOnce {
		all.Go(func() {
			for i := w; i < n; i += atOnce {
				err := do(i)
				mu.Lock()
				if failed == nil {
					failed = err
				}
				ended := failed != nil
				mu.Unlock()
				if ended {
					return
				}
			}
		})
	}
	all.Wait()
	return failed
}

func (k *kubeServer) request(ctx context.Context, method, path, kind, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+k.Address+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+kubetest.Admin)
	resp, err := k.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return err
}

func (k *kubeServer) kubeconfig(address string) string {
	b, _ := json.Marshal(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": "bench",
		"clusters": []any{map[string]any{"name": "bench", "cluster": map[string]string{"server": "https://" + address, "certificate-authority-data": base64.StdEncoding.EncodeToString(k.CA)}}},
		"users":    []any{map[string]any{"name": "bench", "user": map[string]string{"token": kubetest.Admin}}},
		"contexts": []any{map[string]any{"name": "bench", "context": map[string]string{"cluster": "bench", "user": "bench"}}},
	})
	return string(b)
}
