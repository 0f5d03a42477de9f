import { expect } from 'vitest';
import type { ChartFixture } from './chart-fixture.ts';

/** Appends numbered lines. Ends at the first write that fails. */
export const appendLines = 'i=0; while :; do i=$((i+1)); echo "line $i" >>/data/log || exit 1; sleep 0.05; done';

/** Checks on pods that run `appendLines` or only hold a volume. */
export interface LineWriters {
  lines(pod: string): Promise<number>;
  /** Waits until each pod has written more. */
  expectProgress(...pods: readonly string[]): Promise<void>;
  /** Checks that each log has all lines in order. */
  expectWholeLogs(...pods: readonly string[]): Promise<void>;
  /** Checks that no container has ended, because applications end on an I/O error. A failure shows the agents' logs. */
  expectRunning(...pods: readonly string[]): Promise<void>;
}

const pollOptions = { interval: 250, timeout: 90_000 };

export function lineWriters({ cluster: { kubectl }, namespacedKubectl }: ChartFixture): LineWriters {
  const exec = (pod: string, script: string): Promise<string> => kubectl('exec', pod, '--', 'sh', '-c', script);
  const lines = (pod: string): Promise<number> => exec(pod, 'wc -l </data/log').then(Number);
  return {
    lines,
    expectProgress: async (...pods) => {
      for (const pod of pods) {
        const before = await lines(pod);
        await expect.poll(() => lines(pod), pollOptions).toBeGreaterThan(before);
      }
    },
    expectWholeLogs: async (...pods) => {
      for (const pod of pods) {
        const log = (await exec(pod, 'cat /data/log')).split('\n');
        expect(log).toEqual(log.map((_, at) => `line ${at + 1}`));
      }
    },
    expectRunning: async (...pods) => {
      const statusField = (about: string): string => `{.status.containerStatuses[0].${about}}`;
      const podTemplate = `{.metadata.name}=${statusField('restartCount')}${statusField('state.terminated')}${statusField('lastState.terminated')} `;
      const found = await kubectl('get', 'pod', ...pods, `--output=jsonpath={range .items[*]}${podTemplate}{end}`);
      const expected = pods.map((pod) => `${pod}=0`).join(' ');
      const agents = ['logs', '--selector=app.kubernetes.io/component=agent', '--prefix', '--tail=100'];
      expect(found, found === expected ? '' : await namespacedKubectl(...agents).catch(String)).toBe(expected);
    },
  };
}
