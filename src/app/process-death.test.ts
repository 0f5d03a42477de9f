import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, readlinkSync } from 'node:fs';
import process from 'node:process';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import type { Pod } from '#wire/kube/types.ts';
import type { ControllerProcess } from './controller-registry.ts';
import { type DeathProofs, isGone, isPodEnded, isProvenDead, ownKernelProcess } from './process-death.ts';

const kernel = { scope: 'boot-1 pid:[1]', pid: 1, startTime: '100' };
const own: ControllerProcess = { mark: 20, kernel, pod: { name: 'a', uid: 'uid-a' } };
const none = { own, isGone: async () => false, hasEnded: async () => false };
const proven = (it: Partial<ControllerProcess>, proofs: Partial<DeathProofs> = {}): Promise<boolean> =>
  isProvenDead({ mark: 30, ...it }, { ...none, ...proofs });

describe('a process is proven dead', () => {
  test('if it does not exist, for a reader in the same pid namespace and boot', async () => {
    expect(await proven({ kernel: { ...kernel, pid: 7 } }, { isGone: async ({ pid }) => pid === 7 })).toBe(true);
    expect(await proven({ kernel: { ...kernel, pid: 8 } }, { isGone: async ({ pid }) => pid === 7 })).toBe(false);
  });

  test('never by its pid after another boot or in another pid namespace', async () => {
    const gone = { isGone: async () => true };
    for (const scope of ['boot-2 pid:[1]', 'boot-1 pid:[2]', 'boot-1 pid:[1] time:[3]'])
      expect(await proven({ kernel: { ...kernel, scope } }, gone)).toBe(false);
    expect(await proven({ kernel }, { ...gone, own: { mark: 20 } })).toBe(false);
    expect(await proven({}, gone)).toBe(false);
  });

  test('if this process runs in its pod, as a restarted container', async () => {
    const before = { ...kernel, scope: 'boot-1 pid:[2]' };
    expect(await proven({ kernel: before, pod: { name: 'a', uid: 'uid-a' } })).toBe(true);
    // A pod of the same name, for example of a StatefulSet.
    expect(await proven({ kernel: before, pod: { name: 'a', uid: 'uid-b' } })).toBe(false);
  });

  test('not by its pod alone if it may run beside this process in the same container', async () => {
    const pod = { name: 'a', uid: 'uid-a' };
    expect(await proven({ kernel: { ...kernel, pid: 9 }, pod })).toBe(false);
    expect(await proven({ pod })).toBe(false);
    expect(await proven({ kernel, pod }, { own: { mark: 20, pod } })).toBe(false);
  });

  test('if its pod has ended', async () => {
    const hasEnded = async ({ uid }: { readonly uid: string }): Promise<boolean> => uid === 'uid-b';
    expect(await proven({ pod: { name: 'b', uid: 'uid-b' } }, { hasEnded })).toBe(true);
    expect(await proven({ pod: { name: 'c', uid: 'uid-c' } }, { hasEnded })).toBe(false);
    expect(await isProvenDead({ mark: 30, pod: { name: 'b', uid: 'uid-b' } }, { own, isGone: none.isGone })).toBe(
      false,
    );
  });

  test('never for this process itself', async () => {
    const sure = { own, isGone: async () => true, hasEnded: async () => true };
    expect(await isProvenDead(own, sure)).toBe(false);
  });
});

describe('a pod', () => {
  const containers = [{ name: 'controller' }];
  const pod = (phase: string, ...states: readonly object[]): Pick<Pod, 'spec' | 'status'> => ({
    spec: { containers },
    status: { phase, containerStatuses: states.map((state) => ({ name: 'controller', state })) },
  });
  const finishedAt = '2026-01-01T00:00:00Z';
  const terminated = { terminated: { reason: 'Error', finishedAt } };

  test('has ended if its phase is final and the kubelet reported its containers as terminated', () => {
    expect(isPodEnded(pod('Failed', terminated))).toBe(true);
    expect(isPodEnded(pod('Succeeded', { terminated: { finishedAt } }))).toBe(true);
  });

  test.each<[string, Pick<Pod, 'spec' | 'status'>]>([
    ['the control plane lost its node', pod('Failed', { running: {} })],
    [
      'the kubelet could not find its container',
      pod('Failed', { terminated: { reason: 'ContainerStatusUnknown', finishedAt } }),
    ],
    ['the kubelet does not know when its container ended', pod('Failed', { terminated: { finishedAt: null } })],
    ['its container is being restarted', pod('Running', terminated)],
    ['it has no status of its container', pod('Failed')],
    [
      'it has no status of one of its containers',
      { ...pod('Failed', terminated), spec: { containers: [...containers, { name: 'b' }] } },
    ],
    ['it has no status', {}],
  ])('has not ended if %s', (_, it) => {
    expect(isPodEnded(it)).toBe(false);
  });
});

describe.skipIf(lacks('linux'))('on this machine', () => {
  test('this process exists, with its namespaces', async () => {
    const self = await ownKernelProcess();
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    expect(self?.scope.startsWith(`${boot} ${readlinkSync('/proc/self/ns/pid')}`)).toBe(true);
    expect(self?.pid).toBe(process.pid);
    expect(Number(self?.startTime)).toBeGreaterThan(0);
    expect(await ownKernelProcess()).toEqual(self);
    expect(self && (await isGone(self))).toBe(false);
  });

  test('a process with the same pid and another start time is another process', async () => {
    expect(await isGone({ scope: '', pid: process.pid, startTime: '1' })).toBe(true);
  });

  test('a suspended process is not gone; a killed one is', async () => {
    const child = spawn('sleep', ['1000'], { stdio: 'ignore' });
    const ended = once(child, 'exit');
    onTestFinished(() => void child.kill('SIGKILL'));
    await once(child, 'spawn');
    const stat = readFileSync(`/proc/${child.pid}/stat`, 'utf8');
    const it = {
      scope: '',
      pid: child.pid ?? 0,
      startTime: stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '',
    };
    child.kill('SIGSTOP');
    await expect.poll(() => readFileSync(`/proc/${child.pid}/stat`, 'utf8')).toMatch(/\) T /);
    expect(await isGone(it)).toBe(false);
    child.kill('SIGKILL');
    await ended;
    expect(await isGone(it)).toBe(true);
  });
});
