import { execFileSync } from 'node:child_process';
import { expect, test, vi } from 'vitest';

test('tests and the programs that they start have the usual umask', () => {
  expect(process.umask()).toBe(0o022);
  expect(execFileSync('sh', ['-c', 'umask'], { encoding: 'utf8' }).trim()).toBe('0022');
});

test('the setup removes variables that name a server or cluster of the user', async () => {
  const named = [
    'STOWAGE_SOCKET',
    'STOWAGE_URL',
    'STOWAGE_TOKEN',
    'KUBECONFIG',
    'KUBERNETES_SERVICE_HOST',
    'DOCKER_HOST',
  ];
  for (const name of named) process.env[name] = 'of-the-user';
  vi.resetModules();
  await import('./setup.ts');
  const env = execFileSync('env', { encoding: 'utf8' });
  expect(env).toMatch(/^PATH=/m);
  expect(env).not.toContain('of-the-user');
});
