# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_podmux_global_optspecs
    string join \n h/help V/version
end

function __fish_podmux_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_podmux_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_podmux_using_subcommand
    set -l cmd (__fish_podmux_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c podmux -n "__fish_podmux_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_needs_command" -s V -l version -d 'Print version'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "get" -d 'Show pods, events, sources, sinks or updates of a running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "describe" -d 'Describe a pod or a source of a running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "apply" -d 'Create or replace pods on a running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "diff" -d 'Show what apply would change on a running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "delete" -d 'Delete pods of a running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "logs" -d 'Print the output of the containers of a pod'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "top" -d 'Show the sources, pods and updates of a running agent, live'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "kubeconfig" -d 'Print a kubeconfig with the agent\'s address and credentials'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "version" -d 'Show the versions of this program and of the running agent'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "completion" -d 'Print completions for a shell'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "run" -d 'Run the agent: read pod manifests and publish every change as one ordered stream'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "validate" -d 'Check manifests as the agent does'
complete -c podmux -n "__fish_podmux_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c podmux -n "__fish_podmux_using_subcommand get" -s o -l output -d 'The output format; jsonl prints one object per line' -r -f -a "table\t'A table'
wide\t'A table with more columns'
json\t'Indented JSON'
yaml\t'YAML'
name\t'Names like pod/web'
jsonl\t'One JSON object per line'
jsonpath=\t'A template follows: {.items[*].metadata.name}'"
complete -c podmux -n "__fish_podmux_using_subcommand get" -l sort-by -d 'Sort pods or events by a value, such as .metadata.creationTimestamp' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -s n -l namespace -d 'The namespace [default: default]' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -s l -l selector -d 'Only objects with these labels: app=web,tier!=cache,zone in (a,b),canary' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -l field-selector -d 'Only objects with these fields: spec.nodeName=n1,status.phase!=Running or involvedObject.name=web' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -l source -d 'Only pods or updates of these sources' -r -f -a "file\t''
http\t''
url\t''
api\t''"
complete -c podmux -n "__fish_podmux_using_subcommand get" -l from -d 'For updates: start with this sequence number, if this run of the agent (or the named one) still holds it' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand get" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand get" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand get" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand get" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand get" -s w -l watch -d 'List pods or events, then print each one that changes, until interrupted'
complete -c podmux -n "__fish_podmux_using_subcommand get" -s A -l all-namespaces -d 'Pods or events of all namespaces'
complete -c podmux -n "__fish_podmux_using_subcommand get" -l show-labels -d 'Add a column with the labels'
complete -c podmux -n "__fish_podmux_using_subcommand get" -l no-headers -d 'Omit the header line'
complete -c podmux -n "__fish_podmux_using_subcommand get" -l ignore-not-found -d 'Do not report objects that do not exist'
complete -c podmux -n "__fish_podmux_using_subcommand get" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand describe" -s n -l namespace -d 'The namespace of the pod [default: default]' -r
complete -c podmux -n "__fish_podmux_using_subcommand describe" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand describe" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand describe" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand describe" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand describe" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand describe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand apply" -s f -l filename -d 'A manifest, a directory of *.json, *.yaml and *.yml files (hidden ones, too), or - for standard input; may be repeated' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand apply" -s n -l namespace -d 'The namespace of pods without one' -r
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l dry-run -d 'Let the agent check the request and change nothing; without a value, server' -r -f -a "none\t'Make the changes'
server\t'Let the agent check the request without making the changes'"
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l validate -d 'How to treat unknown fields and duplicate keys' -r -f -a "strict\t'Reject the manifest'
warn\t'Apply it and print a warning'
ignore\t'Apply it'"
complete -c podmux -n "__fish_podmux_using_subcommand apply" -s o -l output -d 'The output format; without it, one line per pod' -r -f -a "json\t'The stored pods as JSON'
yaml\t'The stored pods as YAML'
name\t'Names like pod/web'
jsonl\t'One JSON object per line'"
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand apply" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand apply" -s R -l recursive -d 'Read directories recursively'
complete -c podmux -n "__fish_podmux_using_subcommand apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand diff" -s f -l filename -d 'A manifest, a directory of *.json, *.yaml and *.yml files (hidden ones, too), or - for standard input; may be repeated' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand diff" -s n -l namespace -d 'The namespace of pods without one' -r
complete -c podmux -n "__fish_podmux_using_subcommand diff" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand diff" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand diff" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand diff" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand diff" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand diff" -s R -l recursive -d 'Read directories recursively'
complete -c podmux -n "__fish_podmux_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s f -l filename -d 'A manifest, a directory of *.json, *.yaml and *.yml files (hidden ones, too), or - for standard input; may be repeated' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s l -l selector -d 'The posted pods with these labels: app=web,tier!=cache' -r
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s n -l namespace -d 'The namespace; with -f, of pods without one' -r
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l grace-period -d 'The grace period in seconds: 0 counts as 1, a negative number as each pod\'s own, the default' -r
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l wait -d 'Wait until the pod is gone' -r -f -a "true\t''
false\t''"
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l timeout -d 'How long to wait for the agent\'s answers and for the end of the pods, like 30s or 2m; 0 means without limit' -r
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l dry-run -d 'Let the agent check the request and change nothing; without a value, server' -r -f -a "none\t'Make the changes'
server\t'Let the agent check the request without making the changes'"
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s o -l output -d 'The output format; name prints only pod/NAME' -r -f -a "name\t'Names like pod/web'"
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s R -l recursive -d 'Read directories recursively'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l all -d 'All posted pods of the namespace'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s A -l all-namespaces -d 'With --all or --selector, pods of all namespaces'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l now -d 'A grace period of one second'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l force -d 'Erase the pod at once, without waiting for sinks'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -l ignore-not-found -d 'Do not report pods that do not exist'
complete -c podmux -n "__fish_podmux_using_subcommand delete" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand logs" -s c -l container -d 'The container [default: that of the annotation kubectl.kubernetes.io/default-container, or the first]' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l tail -d 'Only the last lines; -1 means all' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l since -d 'Only output that is not older than this: 30s, 5m, 2h' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l limit-bytes -d 'The largest number of bytes of each container' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -s n -l namespace -d 'The namespace' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l all-containers -d 'All containers of the pod, init containers first'
complete -c podmux -n "__fish_podmux_using_subcommand logs" -s f -l follow -d 'Print new output until the container ends or the command is interrupted'
complete -c podmux -n "__fish_podmux_using_subcommand logs" -s p -l previous -d 'The output of the container before the last restart'
complete -c podmux -n "__fish_podmux_using_subcommand logs" -l timestamps -d 'Begin each line with its time'
complete -c podmux -n "__fish_podmux_using_subcommand logs" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand top" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand top" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand top" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand top" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand top" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -l read-only -d 'Print the token that permits reading only'
complete -c podmux -n "__fish_podmux_using_subcommand kubeconfig" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand version" -s o -l output -d 'Print JSON or YAML' -r -f -a "json\t''
yaml\t''"
complete -c podmux -n "__fish_podmux_using_subcommand version" -l server -d 'The agent\'s address: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: the first that exists of unix:/run/podmux/podmux.sock and unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] [env: PODMUX_SERVER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand version" -l token-file -d 'A file with the bearer token [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand version" -l ca-file -d 'The CA certificates (PEM) that verify the agent\'s certificate, instead of the system\'s [default: that of the state directory, for https on this machine]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand version" -l client-cert -d 'The client certificate (PEM); requires --client-key' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand version" -l client-key -d 'The private key (PEM) of --client-cert' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand version" -l client -d 'Only the version of this program; no agent is asked'
complete -c podmux -n "__fish_podmux_using_subcommand version" -s h -l help -d 'Print help'
complete -c podmux -n "__fish_podmux_using_subcommand completion" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand run" -l pod-manifest-path -d 'File or directory of pod manifests; it is watched [env: PODMUX_POD_MANIFEST_PATH]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l file-check-frequency -d 'Time between two complete scans of the manifests, in addition to watching [default: 20s] [env: PODMUX_FILE_CHECK_FREQUENCY]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l on-invalid-manifest -d 'What happens to the pods of a file whose manifest becomes invalid: keep the last valid ones, or remove them [default: keep] [env: PODMUX_ON_INVALID_MANIFEST]' -r -f -a "keep\t''
remove\t''"
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url -d 'URL of pod manifests; it is polled [env: PODMUX_MANIFEST_URL]' -r -f
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url-header -d 'A header for each request of the URL; may be repeated. Other users of this machine can read flags: put a secret in --config FILE [env: PODMUX_MANIFEST_URL_HEADER]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url-ca-file -d 'The certificate authorities (PEM) that verify the URL\'s server, instead of the system\'s [env: PODMUX_MANIFEST_URL_CA_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url-client-cert-file -d 'The client certificate (PEM) for the URL\'s server [env: PODMUX_MANIFEST_URL_CLIENT_CERT_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url-client-key-file -d 'The private key (PEM) of that certificate [env: PODMUX_MANIFEST_URL_CLIENT_KEY_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l manifest-url-sha256 -d 'Reject content of the URL whose SHA-256 differs from this [env: PODMUX_MANIFEST_URL_SHA256]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l http-check-frequency -d 'Time between two polls of the URL [default: 20s] [env: PODMUX_HTTP_CHECK_FREQUENCY]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l kubeconfig -d 'The kubeconfig of the API server whose pods for this node are read, or in-cluster for the service account of a pod [env: PODMUX_KUBECONFIG]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l pod-security -d 'The level of the Pod Security Standards (privileged, baseline or restricted) that the pods of a source (file, http, url or api) may not exceed; may be repeated [default: privileged] [env: PODMUX_POD_SECURITY]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l node-name -l hostname-override -d 'The name of this node, a part of every static pod\'s name [default: the host name] [env: PODMUX_NODE_NAME]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l listen -d 'Address of the HTTP server, or none; may be repeated. Sockets from systemd are served in addition. TCP is served over TLS, to clients with a token or a certificate [default: unix:/run/podmux/podmux.sock for root, else unix:$XDG_RUNTIME_DIR/podmux/podmux.sock; and 127.0.0.1:10240] [env: PODMUX_LISTEN]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l max-posted-pods -d 'The most posted pods; replacing and deleting them is always allowed [default: 1000] [env: PODMUX_MAX_POSTED_PODS]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l max-posted-bytes -d 'The most bytes of posted pods, as JSON [default: 64Mi] [env: PODMUX_MAX_POSTED_BYTES]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l anonymous-auth -d 'Serve TCP as plain HTTP to all users of this machine, without TLS and credentials, on loopback only; for test rigs [default: false] [env: PODMUX_ANONYMOUS_AUTH]' -r -f -a "true\t''
false\t''"
complete -c podmux -n "__fish_podmux_using_subcommand run" -l token-file -d 'The file with the token that TCP clients must send [default: auth/token in the state directory, made at the first start] [env: PODMUX_TOKEN_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l tls-cert-file -d 'The server\'s certificate (PEM, with its chain) [default: auth/server.crt in the state directory, made at the first start and renewed] [env: PODMUX_TLS_CERT_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l tls-private-key-file -d 'The private key (PEM) of that certificate [env: PODMUX_TLS_PRIVATE_KEY_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l client-ca-file -d 'The certificate authorities (PEM) that sign client certificates [env: PODMUX_CLIENT_CA_FILE]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -l sink -d 'Where updates go: jsonl writes JSON lines to standard output or a file, webhook POSTs them to a URL; or what runs the pods: exec runs a program for each pod, podman runs pods with podman. On a terminal the default is table, a row for each update. May be repeated [default: jsonl] [env: PODMUX_SINK]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l sink-concurrency -d 'How many pods a runtime works on at once; podman stops eight times as many that are no longer wanted [default: 4] [env: PODMUX_SINK_CONCURRENCY]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l notify -d 'What sinks receive: each change (incremental), all pods at each change (snapshot), or all pods when pods are added or removed and each change otherwise (snapshot-and-updates) [default: incremental] [env: PODMUX_NOTIFY]' -r -f -a "incremental\t''
snapshot\t''
snapshot-and-updates\t''"
complete -c podmux -n "__fish_podmux_using_subcommand run" -l state-dir -d 'Directory for posted pods and last-known-good manifests; none stores nothing [default: /var/lib/podmux for root, else the user\'s state directory] [env: PODMUX_STATE_DIR]' -r -f -a "(__fish_complete_directories)"
complete -c podmux -n "__fish_podmux_using_subcommand run" -l shutdown-grace -d 'Time limit for shutting down [default: 10s] [env: PODMUX_SHUTDOWN_GRACE]' -r
complete -c podmux -n "__fish_podmux_using_subcommand run" -l log-format -d 'Format of the log on standard error [default: text] [env: PODMUX_LOG_FORMAT]' -r -f -a "text\t''
json\t''"
complete -c podmux -n "__fish_podmux_using_subcommand run" -l config -d 'Settings in YAML or JSON: podmux\'s own format, or a KubeletConfiguration [env: PODMUX_CONFIG]' -r -F
complete -c podmux -n "__fish_podmux_using_subcommand run" -s v -l verbose -d 'Log more: -v debug events, -vv traces, -vvv also those of the libraries [env: PODMUX_VERBOSE]'
complete -c podmux -n "__fish_podmux_using_subcommand run" -l check -d 'Check the settings and the files that they name, print the first invalid setting, or every file that cannot be used, and exit without starting: 0 if all are valid, else 2. Addresses, sockets from systemd and the state directory are not checked'
complete -c podmux -n "__fish_podmux_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand validate" -l source -d 'The source whose rules apply' -r -f -a "file\t'Manifests in a directory'
http\t'Manifests that are posted over HTTP'
url\t'Manifests that are polled from a URL'"
complete -c podmux -n "__fish_podmux_using_subcommand validate" -l pod-security -d 'The level of the Pod Security Standards that the pods may not exceed' -r -f -a "privileged\t''
baseline\t''
restricted\t''"
complete -c podmux -n "__fish_podmux_using_subcommand validate" -s o -l output -d 'The output format' -r -f -a "text\t'One line per problem; on a terminal with the faulty line of the manifest'
json\t'One JSON object per manifest and line'
sarif\t'SARIF 2.1.0, for code scanning'
github\t'Workflow commands of GitHub Actions, which annotate a change'
junit\t'JUnit XML, for reports of tests'"
complete -c podmux -n "__fish_podmux_using_subcommand validate" -l node-name -l hostname-override -d 'The name of this node, a part of every static pod\'s name [default: the host name] [env: PODMUX_NODE_NAME]' -r
complete -c podmux -n "__fish_podmux_using_subcommand validate" -s R -l recursive -d 'Check directories recursively, and only their *.json, *.yaml and *.yml files'
complete -c podmux -n "__fish_podmux_using_subcommand validate" -l templates -d 'Also check the pod templates of Deployments, DaemonSets, StatefulSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, and skip other kinds'
complete -c podmux -n "__fish_podmux_using_subcommand validate" -l strict -d 'Treat unknown fields and duplicate keys as errors; other warnings stay warnings'
complete -c podmux -n "__fish_podmux_using_subcommand validate" -s v -l verbose -d 'Also print valid manifests and skipped files'
complete -c podmux -n "__fish_podmux_using_subcommand validate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "get" -d 'Show pods, events, sources, sinks or updates of a running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "describe" -d 'Describe a pod or a source of a running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "apply" -d 'Create or replace pods on a running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "diff" -d 'Show what apply would change on a running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "delete" -d 'Delete pods of a running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "logs" -d 'Print the output of the containers of a pod'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "top" -d 'Show the sources, pods and updates of a running agent, live'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "kubeconfig" -d 'Print a kubeconfig with the agent\'s address and credentials'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "version" -d 'Show the versions of this program and of the running agent'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "completion" -d 'Print completions for a shell'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "run" -d 'Run the agent: read pod manifests and publish every change as one ordered stream'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "validate" -d 'Check manifests as the agent does'
complete -c podmux -n "__fish_podmux_using_subcommand help; and not __fish_seen_subcommand_from get describe apply diff delete logs top kubeconfig version completion run validate help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c podmux -n "__fish_podmux_using_subcommand get" -f -a "pods events sources sinks updates"
complete -c podmux -n "__fish_podmux_using_subcommand completion" -f -a "bash elvish fish powershell zsh"

function __podmux_names
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] __complete $words[2..] 2>/dev/null
end

complete -c podmux -n "not __fish_podmux_needs_command" -a "(__podmux_names)"
complete -c podmux -n "not __fish_podmux_needs_command" -s n -l namespace -r -f -a "(__podmux_names)"
