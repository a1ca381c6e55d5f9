package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// perTransaction is below etcd's limit of 128.
const perTransaction = 100

const prefix = "/coreos.com/network/"

// etcd is a server with flannel's keys.
type etcd struct {
	url string
	cmd *exec.Cmd
	dir string
}

func startEtcd(ctx context.Context, dir string) (*etcd, error) {
	e := &etcd{url: "http://127.0.0.1:2379", dir: dir}
	e.cmd = exec.CommandContext(ctx, "etcd", "--data-dir", dir, "--listen-client-urls", e.url, "--advertise-client-urls", e.url, "--log-level", "error")
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	again, late := time.NewTicker(50*time.Millisecond), time.After(patience)
	defer again.Stop()
	for {
		resp, err := http.Get(e.url + "/health")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return e, nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-again.C:
		case <-late:
			e.stop()
			return nil, fmt.Errorf("etcd does not answer: %w", err)
		}
	}
}

func (e *etcd) stop() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	_ = os.RemoveAll(e.dir)
}

// put is one key and its value.
type put struct{ key, value string }

// write writes keys in transactions.
func (e *etcd) write(ctx context.Context, puts []put) error {
	for len(puts) > 0 {
		n := min(len(puts), perTransaction)
		var ops []any
		for _, p := range puts[:n] {
			ops = append(ops, map[string]any{"request_put": map[string]string{"key": text(p.key), "value": text(p.value)}})
		}
		if err := e.post(ctx, "/v3/kv/txn", map[string]any{"success": ops}); err != nil {
			return err
		}
		puts = puts[n:]
	}
	return nil
}

func (e *etcd) post(ctx context.Context, path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd: %s: %s", resp.Status, answer)
	}
	return err
}

func text(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// lease returns the k-th node's record, as flanneld writes it.
func lease(generation, k int) put {
	p := peer(k)
	return put{
		prefix + "subnets/" + strings.ReplaceAll(p.Subnet.String(), "/", "-"),
		fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}`, p.Gateway, mac(generation, k)),
	}
}

// fill makes the registry hold exactly n nodes.
func (e *etcd) fill(ctx context.Context, n int) error {
	err := e.post(ctx, "/v3/kv/deleterange", map[string]string{"key": text(prefix), "range_end": text(prefix[:len(prefix)-1] + "0")})
	if err != nil {
		return err
	}
	puts := []put{{prefix + "config", `{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}`}}
	for k := range n {
		puts = append(puts, lease(0, k))
	}
	return e.write(ctx, puts)
}

// change gives nodes another MAC.
func (e *etcd) change(ctx context.Context, generation, n int) error {
	var puts []put
	for k := range n {
		puts = append(puts, lease(generation, k))
	}
	return e.write(ctx, puts)
}
