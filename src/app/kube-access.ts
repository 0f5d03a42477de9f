import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { parse } from 'yaml';
import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeAccess } from '#wire/kube/access.ts';
import { fromKubeconfig, inCluster } from '#wire/kube/config.ts';

export interface KubeAccessOptions {
  /** Undefined: use the pod's service account. */
  readonly kubeconfig: string | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly clock: Clock;
}

/** Access to the API server: with the service account of this pod, or a kubeconfig. */
export async function kubeAccess({ kubeconfig, env, clock }: KubeAccessOptions): Promise<KubeAccess> {
  try {
    if (kubeconfig === undefined) return await inCluster({ env, clock });
    const path = resolve(kubeconfig);
    const config: unknown = parse(await readFile(path, 'utf8'));
    return await fromKubeconfig({ config, folder: dirname(path), clock, env });
  } catch (cause) {
    throw new StowageError(`cannot connect to Kubernetes: ${cause instanceof Error ? cause.message : String(cause)}`, {
      code: 'invalid',
      reason: 'kubernetes-unconfigured',
      action: 'Run Stowage in a pod with a service account, or pass --kubeconfig FILE',
      cause,
    });
  }
}
