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
	"slices"
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

// operation is a part of a transaction.
type operation map[string]map[string]string

func put(key, value string) operation {
	return operation{"request_put": {"key": text(key), "value": text(value)}}
}

// write executes operations in transactions.
func (e *etcd) write(ctx context.Context, all []operation) error {
	for ops := range slices.Chunk(all, perTransaction) {
		if err := e.post(ctx, "/v3/kv/txn", map[string]any{"success": ops}); err != nil {
			return err
		}
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

// record is the key of the k-th node's record.
func record(k int) string {
	return prefix + "subnets/" + strings.ReplaceAll(peer(k).Subnet.String(), "/", "-")
}

// lease writes the k-th node's record, as flanneld does.
func lease(generation, k int) operation {
	return put(record(k), fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}`, peer(k).Gateway, mac(generation, k)))
}

// fill makes the registry hold exactly n nodes.
func (e *etcd) fill(ctx context.Context, n int) error {
	err := e.post(ctx, "/v3/kv/deleterange", map[string]string{"key": text(prefix), "range_end": text(prefix[:len(prefix)-1] + "0")})
	if err != nil {
		return err
	}
	all := []operation{put(prefix+"config", `{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}`)}
	for k := range n {
		all = append(all, lease(0, k))
	}
	return e.write(ctx, all)
}

// change gives nodes another MAC.
func (e *etcd) change(ctx context.Context, generation, n int) error {
	var all []operation
	for k := range n {
		all = append(all, lease(generation, k))
	}
	return e.write(ctx, all)
}

// remove removes the records of the first n nodes.
func (e *etcd) remove(ctx context.Context, n int) error {
	var all []operation
	for k := range n {
		all = append(all, operation{"request_delete_range": {"key": text(record(k))}})
	}
	return e.write(ctx, all)
}
