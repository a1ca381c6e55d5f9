// Command cripods creates pods in a container runtime over CRI, as a kubelet does, and prints them as JSON. It is a module of its
// own because grpc must not become a dependency of cnibox.
//
//	cripods [-socket PATH] [-timeout 2m] run [-n 30] [-parallel 10] [-cgroup PATH] [-annotation KEY=VALUE]… [-hostport HOST:CONTAINER] [-attempt 0]
//	cripods [-socket PATH] [-timeout 2m] remove [-parallel 10] [-id ID]…
//	cripods [-socket PATH] [-timeout 2m] status
//
// run makes pod sandboxes and prints a list of {name, id, ips, netns}. A higher attempt makes new sandboxes for the same pods, even
// while the old ones exist. remove stops and removes some sandboxes, or all that the runtime has, and prints their ids. status
// waits until the runtime answers and prints its conditions. The exit status is 1 if a call failed; the results of the others are
// printed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pod is one sandbox as the runtime reports it.
type pod struct {
	Name  string   `json:"name"`
	ID    string   `json:"id"`
	IPs   []string `json:"ips"`
	Netns string   `json:"netns"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cripods:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	global := flag.NewFlagSet("cripods", flag.ExitOnError)
	socket := global.String("socket", "/run/containerd/containerd.sock", "the runtime's `path`")
	timeout := global.Duration("timeout", 8*time.Minute, "`time` for the whole call")
	if err := global.Parse(args); err != nil {
		return err
	}
	if global.NArg() == 0 {
		return errors.New("want run, remove or status")
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	// A runtime that was just started has no socket yet: every call waits for it.
	conn, err := grpc.NewClient("unix://"+*socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return fmt.Errorf("connect to %q: %w", *socket, err)
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	switch verb, rest := global.Arg(0), global.Args()[1:]; verb {
	case "run":
		return runPods(ctx, client, rest)
	case "remove":
		return removePods(ctx, client, rest)
	case "status":
		return status(ctx, client)
	default:
		return fmt.Errorf("unknown verb %q", verb)
	}
}

func runPods(ctx context.Context, client cri.RuntimeServiceClient, args []string) error {
	set := flag.NewFlagSet("run", flag.ExitOnError)
	n := set.Int("n", 30, "`number` of pods")
	parallel := set.Int("parallel", 10, "`number` of calls at a time")
	config := cri.PodSandboxConfig{Annotations: map[string]string{}, Linux: &cri.LinuxPodSandboxConfig{}}
	set.StringVar(&config.Linux.CgroupParent, "cgroup", "", "`path` of the pods' cgroup, the runtime's own if empty")
	set.Func("annotation", "annotation of every pod, `KEY=VALUE`", func(v string) error {
		key, value, ok := strings.Cut(v, "=")
		if !ok {
			return errors.New("want KEY=VALUE")
		}
		config.Annotations[key] = value
		return nil
	})
	ports := cri.PortMapping{Protocol: cri.Protocol_TCP}
	set.Func("hostport", "TCP port of every pod, `HOST:CONTAINER`; the first pod's is HOST, the next one's HOST+1", func(v string) error {
		_, err := fmt.Sscanf(v, "%d:%d", &ports.HostPort, &ports.ContainerPort)
		return err
	})
	attempt := set.Uint("attempt", 0, "`number` of the pods' sandbox")
	if err := set.Parse(args); err != nil {
		return err
	}
	pods := make([]pod, *n)
	err := each(*n, *parallel, func(i int) error {
		var err error
		name := fmt.Sprintf("pod-%d", i)
		own := &cri.PodSandboxConfig{
			Metadata:    &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name, Attempt: uint32(*attempt)},
			Annotations: config.Annotations,
			Linux:       config.Linux,
		}
		if ports.HostPort != 0 {
			own.PortMappings = []*cri.PortMapping{{Protocol: ports.Protocol, HostPort: ports.HostPort + int32(i), ContainerPort: ports.ContainerPort}}
		}
		pods[i], err = runPod(ctx, client, own)
		return err
	})
	return errors.Join(err, show(pods))
}

// runPod makes one sandbox and reads its addresses and network namespace.
func runPod(ctx context.Context, client cri.RuntimeServiceClient, config *cri.PodSandboxConfig) (pod, error) {
	p := pod{Name: config.Metadata.Name}
	made, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return p, fmt.Errorf("run pod %q: %w", p.Name, err)
	}
	p.ID = made.PodSandboxId
	got, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	if err != nil {
		return p, fmt.Errorf("ask for status of pod %q: %w", p.Name, err)
	}
	p.IPs = append(p.IPs, got.GetStatus().GetNetwork().GetIp())
	for _, more := range got.GetStatus().GetNetwork().GetAdditionalIps() {
		p.IPs = append(p.IPs, more.Ip)
	}
	p.Netns, err = netnsOf(got.Info["info"])
	if err != nil {
		return p, fmt.Errorf("find network namespace of pod %q: %w", p.Name, err)
	}
	return p, nil
}

// netnsOf reads the path of the network namespace from the OCI specification in containerd's verbose status.
func netnsOf(info string) (string, error) {
	var v struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(info), &v); err != nil {
		return "", err
	}
	for _, n := range v.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" && n.Path != "" {
			return n.Path, nil
		}
	}
	return "", errors.New("none in the runtime's specification")
}

func removePods(ctx context.Context, client cri.RuntimeServiceClient, args []string) error {
	set := flag.NewFlagSet("remove", flag.ExitOnError)
	parallel := set.Int("parallel", 10, "`number` of calls at a time")
	var ids []string
	set.Func("id", "`sandbox` to remove; every one without any", func(v string) error {
		ids = append(ids, v)
		return nil
	})
	if err := set.Parse(args); err != nil {
		return err
	}
	if len(ids) == 0 {
		list, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for _, item := range list.Items {
			ids = append(ids, item.Id)
		}
	}
	removed := make([]string, len(ids))
	err := each(len(ids), *parallel, func(i int) error {
		id := ids[i]
		if _, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			return fmt.Errorf("stop pod %q: %w", id, err)
		}
		if _, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			return fmt.Errorf("remove pod %q: %w", id, err)
		}
		removed[i] = id
		return nil
	})
	return errors.Join(err, show(removed))
}

func status(ctx context.Context, client cri.RuntimeServiceClient) error {
	version, err := client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask for version: %w", err)
	}
	got, err := client.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask for status: %w", err)
	}
	return show(map[string]any{
		"runtime": version.RuntimeName, "version": version.RuntimeVersion, "conditions": got.GetStatus().GetConditions(),
	})
}

// each calls do(0) to do(n-1), at most parallel at a time, and joins their errors.
func each(n, parallel int, do func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, max(parallel, 1))
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func show(v any) error {
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
