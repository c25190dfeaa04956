//! What the user can do while the demonstration stays up.

use crate::Running;
use crate::cluster::Cluster;
use crate::plan::{NAMESPACE, PODS};
use crate::processes::write_private;
use crate::say::Say;
use crate::support::Result;
use crate::traces::Traces;

/// Prints where things are and what to try.
pub async fn instructions(cluster: &Cluster, running: Option<&Running>, traces: &Traces, say: Say) -> Result<()> {
    let pod = cluster.folder().join("pod.yaml");
    write_private(&pod, &manifest()).await?;
    let pod = pod.display();
    say.step("Everything stays up until Ctrl-C. Try in another terminal:");
    say.line(format!("export KUBECONFIG={}", cluster.kubeconfig.display()));
    say.line(format!("alias kubectl={}", cluster.kubectl.display()));
    say.line("kubectl get attacherconfigs -o wide");
    say.line("kubectl explain attacherconfig.spec --recursive");
    say.line(format!("kubectl apply -f {pod}"));
    say.line("kubectl get volumeattachments --watch");
    say.line(format!("kubectl delete --force -f {pod}"));
    let Some(running) = running else { return Ok(()) };
    say.line("");
    let http = running.operator.http();
    say.line(format!(
        "Metrics and health of the operator: http://{http}/metrics http://{http}/readyz"
    ));
    traces.tell_where(say).await?;
    say.line(format!("Log of the operator: {}", running.operator.log().display()));
    for driver in &running.drivers {
        let (calls, control) = (driver.calls.display(), driver.control.display());
        say.line(format!(
            "{}: calls in {calls}, takes commands on {control}",
            driver.driver.name
        ));
    }
    Ok(())
}

/// The first pod of the demonstration again.
fn manifest() -> String {
    let pod = PODS[0];
    let claim = pod.volumes[0].name;
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  namespace: {NAMESPACE}\nspec:\n  nodeName: {}\n  \
         containers:\n    - name: main\n      image: never-pulled\n      volumeMounts:\n        - name: data\n          \
         mountPath: /data\n  volumes:\n    - name: data\n      persistentVolumeClaim:\n        claimName: {claim}\n",
        pod.name, pod.node
    )
}
