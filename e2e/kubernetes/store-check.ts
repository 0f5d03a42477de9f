import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { repository } from '#testbed/component.ts';
import { program } from '../stowage.ts';
import type { ChartFixture } from './chart-fixture.ts';

const account = 'checker';

/** The account in docs/kubernetes.md that may check stores from the network of any pod. */
export async function checkerAccount(): Promise<readonly object[]> {
  const text = await readFile(join(repository, 'docs', 'kubernetes.md'), 'utf8');
  const blocks = Array.from(text.matchAll(/^```yaml\n(.*?)^```$/gms), ([, block = '']) => block);
  const block = blocks.find((text) => text.includes('stores/check')) ?? expect.fail('no account in docs/kubernetes.md');
  return parseAllDocuments(block).map((document) => document.toJS());
}

/** An idle pod without volumes. */
export const idlePod = (name: string, nodeName: string, image: string): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'default' },
  spec: {
    nodeName,
    terminationGracePeriodSeconds: 0,
    containers: [{ name: 'main', image, imagePullPolicy: 'IfNotPresent', command: ['sleep', '100000'] }],
  },
});

export interface CheckOutcome {
  readonly status: number;
  readonly body: {
    readonly ok?: boolean;
    readonly from?: string;
    readonly steps?: readonly {
      readonly step: string;
      readonly ok: boolean;
      readonly detail: string;
      readonly reason?: string;
    }[];
  };
  readonly stderr: string;
}

/** Runs `kubectl stowage store check STORE --from PLACE`. */
export async function checkFrom({ cluster }: ChartFixture, store: string, from: string): Promise<CheckOutcome> {
  const words = ['--account', account, '--json', 'store', 'check', store, '--from', from];
  const env = { PATH: process.env['PATH'], HOME: cluster.folder, KUBECONFIG: cluster.kubeconfig };
  const { promise, resolve, reject } = Promise.withResolvers<CheckOutcome>();
  execFile(program.replace(/stowage$/, 'kubectl-stowage'), words, { env, timeout: 60_000 }, (error, stdout, stderr) => {
    const status = error === null ? 0 : typeof error.code === 'number' ? error.code : -1;
    try {
      resolve({ status, body: stdout === '' ? {} : JSON.parse(stdout), stderr });
    } catch (cause) {
      reject(new Error(`the answer is not JSON (status ${status}): ${stdout} ${stderr}`, { cause }));
    }
  });
  return await promise;
}
