{{/*
The token of the pod's account, as Kubernetes mounts it when it does so by itself. As a volume it is mounted into the
operator's container and not into those of drivers, unless a driver asks for it.
*/}}
{{- define "csi-attacher-operator.tokenVolume" -}}
- name: service-account-token
  projected:
    defaultMode: 0444
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}

{{- define "csi-attacher-operator.tokenMount" -}}
- name: service-account-token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}
