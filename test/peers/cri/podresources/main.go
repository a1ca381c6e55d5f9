// Command podresources serves kubelet's pod-resources API on a Unix socket, with kubelet's own code for gRPC and for the messages. What it
// answers for a pod is in the file NAMESPACE.POD.json of a directory: a v1.GetPodResourcesResponse, or {"code": CODE, "message": TEXT} for an
// error. It ends when its standard input does.
//
//	podresources SOCKET DIR
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type server struct {
	podresources.UnimplementedPodResourcesListerServer
	dir string
}

// Get answers with the pod's file.
func (s *server) Get(_ context.Context, req *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	raw, err := os.ReadFile(filepath.Join(s.dir, req.PodNamespace+"."+req.PodName+".json"))
	if err != nil {
		return nil, fmt.Errorf("pod %s in namespace %s not found", req.PodName, req.PodNamespace)
	}
	var refusal struct {
		Code    codes.Code
		Message string
	}
	if json.Unmarshal(raw, &refusal) == nil && refusal.Code != codes.OK {
		return nil, status.Error(refusal.Code, refusal.Message)
	}
	answer := &podresources.GetPodResourcesResponse{}
	return answer, protojson.Unmarshal(raw, answer)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("want SOCKET DIR")
	}
	l, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, &server{dir: os.Args[2]})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	if err := s.Serve(l); err != nil {
		log.Fatal(err)
	}
}
