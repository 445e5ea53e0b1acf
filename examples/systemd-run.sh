#!/bin/sh
# A program for podmux's exec runtime (docs/exec.md): the first container of a pod runs as a service of systemd.
# It needs jq. The service has the name of the pod's UID, so each operation can be repeated, and the hash
# in its description, so only what has changed is restarted.
set -eu
# A manifest can have any UID. systemctl would take some for a pattern, so nothing is started for them.
case $PODMUX_POD_UID in
*[!0-9A-Za-z._-]*)
    case $PODMUX_OP in DELETE | REMOVE) exit 0 ;; esac
    echo "metadata.uid may have only letters, digits, '.', '_' and '-' here" >&2
    exit 1
    ;;
esac
unit=podmux-$PODMUX_POD_UID.service
description="pod $PODMUX_POD_NAMESPACE/$PODMUX_POD_NAME $PODMUX_HASH"
show() { systemctl show --property="$1" --value "$unit"; }
# To stop a service that does not exist is no failure.
stop() { systemctl stop "$unit" || [ "$(show LoadState)" = not-found ]; }

case $PODMUX_OP in
ADD | UPDATE | RECONCILE)
    if systemctl --quiet is-active "$unit" && [ "$(show Description)" = "$description" ]; then exit 0; fi
    stop
    # One word for each argument. systemd replaces variables in commands, and Kubernetes does not.
    eval "set -- $(jq -r '.spec as $pod | $pod.containers[0] as $container | [
        "--property=Restart=\({"Never": "no", "OnFailure": "on-failure"}[$pod.restartPolicy // ""] // "always")",
        "--property=RemainAfterExit=\(if $pod.restartPolicy == "Never" or $pod.restartPolicy == "OnFailure" then "yes" else "no" end)",
        "--property=TimeoutStopSec=\([$pod.terminationGracePeriodSeconds // 30, 1] | max)",
        ($container.env[]? | select(.value) | "--setenv=\(.name)=\(.value)"), "--",
        ($container.command[]?, $container.args[]? | gsub("[$]"; "$$"))] | @sh')"
    exec systemd-run --quiet --collect --unit="$unit" --description="$description" --property=Type=exec \
        --property=RestartSec=1 --property=StartLimitIntervalSec=0 "$@"
    ;;
DELETE)
    # Within the grace of the deletion, which may be shorter than the pod's.
    timeout --foreground "$(jq '[.metadata.deletionGracePeriodSeconds, 1] | max')" systemctl stop "$unit" ||
        systemctl kill --signal=KILL "$unit" || true
    stop
    ;;
REMOVE) stop ;;
esac
